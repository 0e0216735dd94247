#include "data/cache/cache_builder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

#include "base/random.h"
#include "data/cache/cache_pipeline.h"
#include "data/cache/cache_writer.h"
#include "data/cache/file_lock.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Changes whenever the same source gives other files.
constexpr uint64_t kCacheVersion = 1;
constexpr const char* kBuildingSuffix = ".building";
constexpr const char* kLockSuffix = ".lock";
constexpr int64_t kBytesPerThread = int64_t{1} << 20;
constexpr auto kProgressPeriod = std::chrono::milliseconds(200);
constexpr auto kLockPatience = std::chrono::milliseconds(50);

// What the system says about a file: when it stays the same, so did the content, as far as that can be told quickly.
struct FileState {
  int64_t bytes = 0;
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  uint64_t inode = 0;
  bool operator==(const FileState&) const = default;
};

FileState state_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw FileError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  }
  return {static_cast<int64_t>(status.st_size), static_cast<int64_t>(status.st_mtim.tv_sec),
          static_cast<int64_t>(status.st_mtim.tv_nsec), static_cast<uint64_t>(status.st_ino)};
}

std::vector<FileState> states_of(const std::vector<std::string>& paths) {
  std::vector<FileState> states;
  states.reserve(paths.size());
  for (const std::string& path : paths) states.push_back(state_of(path));
  return states;
}

void check_stop(const TokenCacheOptions& options) {
  if (options.stop == nullptr || !options.stop->load()) return;
  throw StoppedError("stopped while data was being tokenized; nothing of it was kept");
}

void note(const TokenCacheOptions& options, const std::string& text) {
  if (options.on_note) options.on_note(text);
}

// A folder that goes away again unless it is kept.
class BuildingFolder {
 public:
  explicit BuildingFolder(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  BuildingFolder(const BuildingFolder&) = delete;
  BuildingFolder& operator=(const BuildingFolder&) = delete;
  ~BuildingFolder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }

  std::string path() const { return path_.string(); }
  void keep_as(const fs::path& place) {
    fs::rename(path_, place);
    kept_ = true;
  }

 private:
  fs::path path_;
  bool kept_ = false;
};

// Removes what builders that were killed have left: locks that nobody holds, and the folders that belong to them.
void remove_leftovers(const fs::path& folder) {
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path extension = entry.path().extension();
    if (extension == kBuildingSuffix || extension == kLockSuffix) {
      found.insert(fs::path(entry.path()).replace_extension());
    }
  }
  for (const fs::path& cache : found) {
    FileLock lock(cache.string() + kLockSuffix);
    std::error_code ignored;
    if (lock.try_lock()) fs::remove_all(cache.string() + kBuildingSuffix, ignored);
  }
}

// The cache if it is there and whole. `problem` says what is wrong with one that is there.
std::unique_ptr<TokenCache> try_open(const fs::path& place, const ContentDigest& key, std::string& problem) {
  if (!fs::exists(place)) return nullptr;
  try {
    return std::make_unique<TokenCache>(place.string(), key);
  } catch (const InputError& error) {
    problem = error.what();
  } catch (const FileError& error) {
    problem = error.what();
  }
  return nullptr;
}

void lock_or_wait(FileLock& lock, const fs::path& place, const TokenCacheOptions& options) {
  bool said = false;
  while (!lock.try_lock()) {
    check_stop(options);
    if (!said) note(options, fmt::format("another process is building the token cache {}; waiting", place.string()));
    said = true;
    std::this_thread::sleep_for(kLockPatience);
  }
}

class Build {
 public:
  Build(const TokenCacheSource& source, const TokenCacheOptions& options) : source_(source), options_(options) {}

  void run(const std::string& folder, const ContentDigest& key) {
    CacheWriter writer(folder, key, source_.files, source_.vocabulary);
    const std::unique_ptr<RecordSource> records = source_.open_records();
    progress_.bytes_in_all = records->bytes_in_all();
    CachePipelineOptions pipeline_options;
    pipeline_options.threads =
        options_.threads > 0 ? options_.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    pipeline_options.bytes_in_flight = options_.bytes_in_flight > 0
                                           ? options_.bytes_in_flight
                                           : kBytesPerThread * std::max<int64_t>(16, pipeline_options.threads);
    pipeline_options.skip_bad_records = source_.skip_bad_records;
    pipeline_options.vocabulary = source_.vocabulary;
    CachePipeline pipeline(*records, *source_.maker, pipeline_options);
    EncodedBatch batch;
    while (true) {
      check_stop(options_);
      const CachePipeline::Outcome outcome = pipeline.next(batch);
      if (outcome == CachePipeline::Outcome::end) break;
      if (outcome == CachePipeline::Outcome::batch) {
        writer.add(batch.samples);
        writer.add_skipped(batch.skipped);
        progress_.bytes_read = batch.bytes_read;
        progress_.samples = writer.summary().samples;
        progress_.tokens = writer.summary().tokens;
      }
      if (Clock::now() - reported_ >= kProgressPeriod) report();
    }
    writer.finish();
    progress_.bytes_read = progress_.bytes_in_all;
    progress_.finished = true;
    report();
  }

 private:
  void report() {
    reported_ = Clock::now();
    progress_.seconds = std::chrono::duration<double>(reported_ - start_).count();
    if (options_.on_progress) options_.on_progress(progress_);
  }

  const TokenCacheSource& source_;
  const TokenCacheOptions& options_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point reported_ = start_;
  TokenizeProgress progress_;
};

std::unique_ptr<TokenCache> open_or_build(const TokenCacheSource& source, const TokenCacheOptions& options) {
  const std::vector<FileState> before = states_of(source.files);
  const ContentDigest key = token_cache_key(source);
  const fs::path folder = options.folder;
  const fs::path place = folder / key.text();
  std::string problem;
  if (std::unique_ptr<TokenCache> cache = try_open(place, key, problem)) return cache;

  fs::create_directories(folder);
  remove_leftovers(folder);
  FileLock lock((folder / (key.text() + kLockSuffix)).string());
  lock_or_wait(lock, place, options);
  // Another process may have built or mended it while this one waited.
  problem.clear();
  if (std::unique_ptr<TokenCache> cache = try_open(place, key, problem)) return cache;
  if (!problem.empty()) note(options, fmt::format("the token cache is damaged and is built again: {}", problem));

  BuildingFolder building(folder / (key.text() + kBuildingSuffix));
  Build(source, options).run(building.path(), key);
  if (states_of(source.files) != before) {
    throw InputError(
        fmt::format("a data file was changed while it was being tokenized: {}; start again when it is complete",
                    fmt::join(source.files, ", ")));
  }
  fs::remove_all(place);
  building.keep_as(place);
  return std::make_unique<TokenCache>(place.string(), key);
}

}  // namespace

ContentDigest token_cache_key(const TokenCacheSource& source) {
  ContentHash key;
  key.add_number(kCacheVersion);
  key.add_number(source.maker->settings_hash());
  key.add_number(static_cast<uint64_t>(source.vocabulary));
  key.add_number(source.skip_bad_records ? 1 : 0);
  key.add_number(source.files.size());
  for (const std::string& file : source.files) {
    // How records are read may depend on a file's name, but not on its folder.
    key.add_text(fs::path(file).filename().string());
    const ContentDigest content = hash_file(file);
    key.add_number(content.high);
    key.add_number(content.low);
  }
  return key.digest();
}

std::unique_ptr<TokenCache> open_token_cache(const TokenCacheSource& source, const TokenCacheOptions& options) {
  require(!source.files.empty() && source.maker != nullptr && source.open_records != nullptr && source.vocabulary > 0,
          "a token cache needs files, a source of records, a sample maker and a vocabulary");
  try {
    return open_or_build(source, options);
  } catch (const fs::filesystem_error& error) {
    throw FileError(
        fmt::format("the token cache in {} cannot be used: {}; data.cache_dir says where token caches are kept",
                    options.folder, error.code().message()));
  }
}

}  // namespace ithaca
