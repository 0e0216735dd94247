// Building a large cache takes little memory, whatever is read: measured in a process of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/random.h"
#include "data/cache/cache_builder.h"
#include "data/cache/cache_testing.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

constexpr int64_t kTextBytes = 300'000'000;
constexpr int64_t kMostKilobytes = 200'000;

void write_text(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const RandomStream random(1, "text");
  std::string line;
  uint64_t number = 0;
  for (int64_t written = 0; written < kTextBytes; written += static_cast<int64_t>(line.size())) {
    line.assign(100 + random.bits(number) % 4000, 'x');
    for (size_t i = 0; i < line.size(); i += 8) line[i] = static_cast<char>('a' + random.bits(number * 1000 + i) % 26);
    line += '\n';
    file.write(line.data(), static_cast<std::streamsize>(line.size()));
    ++number;
  }
}

TEST(CacheMemory, IsBounded) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("text");
  write_text(path);
  const pid_t child = ::fork();
  if (child == 0) {
    const ByteMaker maker;
    TokenCacheOptions options;
    options.folder = directory.file("caches");
    options.threads = 4;
    const auto cache = open_token_cache(line_source({path}, maker), options);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    // The peak of the build: the finished cache is only mapped.
    ::_exit(cache->summary().tokens > kTextBytes * 9 / 10 && usage.ru_maxrss < kMostKilobytes ? 0 : 1);
  }
  int status = 0;
  rusage usage{};
  ASSERT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "largest size " << usage.ru_maxrss << " kB";
  RecordProperty("largest_kilobytes", static_cast<int>(usage.ru_maxrss));
}

}  // namespace
}  // namespace ithaca
