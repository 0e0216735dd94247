#include "data/cache/cache_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "data/cache/cache_meta.h"
#include "data/cache/cache_testing.h"
#include "data/cache/file_lock.h"
#include "data/step_batch.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CacheBuilderTest : public testing::Test {
 protected:
  TokenCacheOptions options() {
    TokenCacheOptions result;
    result.folder = directory_.file("caches");
    result.on_note = [this](const std::string& text) { notes_.push_back(text); };
    return result;
  }
  std::string write_lines(const std::string& name, const std::vector<std::string>& lines) const {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return directory_.write(name, text);
  }
  // Names in the folder of caches.
  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_.file("caches"))) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  TemporaryDirectory directory_;
  std::vector<std::string> notes_;
};

TEST_F(CacheBuilderTest, HoldsWhatTheMakerMade) {
  const std::vector<std::string> files = {write_lines("a", {"hello", "", "x", "mask 3"}),
                                          write_lines("b", {"weights", "labels", "split it"})};
  const ByteMaker maker;
  const auto cache = open_token_cache(line_source(files, maker), options());
  EXPECT_THAT(cache_texts(*cache),
              ElementsAre("hello", "", "x", "mask 3", "weights", "labels", "sp", "li", "t ", "it"));
  EXPECT_EQ(cache->summary().samples, 7);
  EXPECT_EQ(cache->summary().documents, 10);
  EXPECT_EQ(cache->summary().tokens, 5 + 1 + 6 + 7 + 6 + 8);
  EXPECT_EQ(cache->summary().targets, 4 + 3 + 6 + 5 + 4);
  EXPECT_EQ(cache->summary().longest_document, 7);
  EXPECT_EQ(cache->first_document(5), 5);
  EXPECT_EQ(cache->first_document(6), 6);
  EXPECT_EQ(cache->first_document(7), 10);

  const auto labels_of = [&](int64_t document) {
    std::vector<int64_t> labels;
    cache->read_targets(document, 0, cache->length(document), 1, labels, nullptr);
    return labels;
  };
  EXPECT_THAT(labels_of(0), ElementsAre(kNoLabel, 'e', 'l', 'l', 'o'));
  EXPECT_THAT(labels_of(3), ElementsAre(kNoLabel, kNoLabel, kNoLabel, 'k', ' ', '3'));
  EXPECT_THAT(labels_of(5), ElementsAre(kNoLabel, 'a' + 1, 'b' + 1, 'e' + 1, 'l' + 1, 's' + 1));
  EXPECT_FALSE(cache->weighted(3));
  EXPECT_TRUE(cache->weighted(4));
  std::vector<int64_t> labels;
  std::vector<float> weights;
  cache->read_targets(4, 1, 3, 2, labels, &weights);
  EXPECT_THAT(weights, ElementsAre(0.5f, 1.5f, 2.5f));
  EXPECT_THAT(labels, ElementsAre('e', 'g', 't'));
  EXPECT_EQ(cache->targets(4).count, 6);
  EXPECT_EQ(cache->targets(4).weight_sum, 0.5 * (1 + 2 + 3 + 4 + 5 + 6));
  EXPECT_EQ(cache->targets(4, 2, 4).weight_sum, 2.5);
  EXPECT_THROW(cache->length(10), ContractError);
  EXPECT_THROW(cache->read_targets(4, 1, 4, 2, labels, nullptr), ContractError);
}

// Documents of the same tokens trained in other ways are other documents; the same ones are the same.
TEST_F(CacheBuilderTest, ContentHashes) {
  const std::string file = write_lines("a", {"hello", "hellp", "mask 3", "mask 4", "hello", "hell"});
  const ByteMaker maker;
  const auto cache = open_token_cache(line_source({file}, maker), options());
  EXPECT_EQ(cache->content_hash(0), cache->content_hash(4));
  std::set<uint64_t> different;
  for (const int64_t document : {0, 1, 2, 3, 5}) different.insert(cache->content_hash(document));
  EXPECT_EQ(different.size(), 5u);
}

TEST_F(CacheBuilderTest, IdsOfEveryWidth) {
  for (const int64_t id : {255, 256, 65535, 65536, 70000}) {
    const std::string file = write_lines("wide", {"ids " + std::to_string(id), "z"});
    const ByteMaker maker;
    const auto cache = open_token_cache(line_source({file}, maker, id + 1), options());
    std::vector<int64_t> ids;
    cache->read_tokens(0, 0, 1, 1, ids);
    EXPECT_THAT(ids, ElementsAre(id));
    EXPECT_EQ(fs::file_size(fs::path(cache->folder()) / "tokens.bin"), static_cast<uintmax_t>(2 * (id < 256     ? 1
                                                                                                   : id < 65536 ? 2
                                                                                                                : 4)));
    EXPECT_THAT(message_of<InputError>([&] { open_token_cache(line_source({file}, maker, id), options()); }),
                AllOf(HasSubstr("wide:1"), HasSubstr("the model's ids are 0 to " + std::to_string(id - 1))));
  }
}

// Many batches and threads: the order stays, and what is in flight is bounded.
TEST_F(CacheBuilderTest, OrderWithManyThreads) {
  std::vector<std::string> lines;
  const RandomStream random(8, "lines");
  for (uint64_t i = 0; i < 20000; ++i) lines.push_back(std::to_string(i) + std::string(random.bits(i) % 60, 'x'));
  const std::string file = write_lines("a", lines);
  const ByteMaker maker;
  TokenCacheOptions many = options();
  many.threads = 5;
  many.bytes_in_flight = 1 << 18;
  TokenizeProgress last;
  many.on_progress = [&](const TokenizeProgress& progress) { last = progress; };
  const auto cache = open_token_cache(line_source({file}, maker), many);
  EXPECT_EQ(cache_texts(*cache), lines);
  EXPECT_TRUE(last.finished);
  EXPECT_EQ(last.samples, 20000);
  EXPECT_EQ(last.tokens, cache->summary().tokens);
  EXPECT_EQ(last.bytes_read, last.bytes_in_all);
}

TEST_F(CacheBuilderTest, ARecordLargerThanEverythingInFlight) {
  const std::vector<std::string> lines = {"a", std::string(100000, 'y'), "b"};
  const ByteMaker maker;
  TokenCacheOptions small = options();
  small.bytes_in_flight = 1000;
  EXPECT_EQ(cache_texts(*open_token_cache(line_source({write_lines("a", lines)}, maker), small)), lines);
}

TEST_F(CacheBuilderTest, MadeOnceForTheSameContentAndSettings) {
  const ByteMaker maker;
  const std::string file = write_lines("a", {"hello", "you"});
  const auto open = [&](const std::string& path, const SampleMaker& with, int64_t vocabulary = 256) {
    return open_token_cache(line_source({path}, with, vocabulary), options())->folder();
  };
  const std::string first = open(file, maker);
  EXPECT_EQ(open(file, maker), first);
  EXPECT_EQ(maker.made(), 2);
  // Touched, or moved: the content decides.
  fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(3));
  EXPECT_EQ(open(file, maker), first);
  fs::create_directory(directory_.file("other"));
  fs::copy_file(file, directory_.file("other/a"));
  EXPECT_EQ(open(directory_.file("other/a"), maker), first);
  EXPECT_EQ(maker.made(), 2);

  // Changed, with the same size and time: stale whatever the clock says.
  const auto time = fs::last_write_time(file);
  write_lines("a", {"hellO", "you"});
  fs::last_write_time(file, time);
  EXPECT_NE(open(file, maker), first);
  EXPECT_EQ(maker.made(), 4);
  write_lines("a", {"hello", "you"});
  const ByteMaker other(2);
  EXPECT_NE(open(file, other), first);
  EXPECT_NE(open(file, maker, 300), first);
  TokenCacheSource skipping = line_source({file}, maker);
  skipping.skip_bad_records = true;
  EXPECT_NE(open_token_cache(skipping, options())->folder(), first);
  EXPECT_NE(open_token_cache(line_source({file, file}, maker), options())->folder(), first);
  const std::string renamed = write_lines("a.txt", {"hello", "you"});
  EXPECT_NE(open(renamed, maker), first);
  EXPECT_EQ(open(file, maker), first);
}

TEST_F(CacheBuilderTest, TheFirstBadRecordStopsAndLeavesNothing) {
  std::vector<std::string> lines(3000, "good");
  lines[1700] = "bad first";
  lines[1701] = "bad second";
  lines[2900] = "unreadable";
  const std::string file = write_lines("a", lines);
  const ByteMaker maker;
  for (int round = 0; round < 5; ++round) {
    TokenCacheOptions many = options();
    many.threads = 4;
    EXPECT_THAT(message_of<InputError>([&] { open_token_cache(line_source({file}, maker), many); }),
                HasSubstr("a:1701: it is bad: bad first"));
    EXPECT_THAT(folders(), IsEmpty());
  }
}

TEST_F(CacheBuilderTest, BadRecordsAreSkippedAndCounted) {
  const std::string file = write_lines("a", {"one", "bad x", "unreadable", "two", "bad y"});
  const ByteMaker maker;
  TokenCacheSource source = line_source({file}, maker);
  source.skip_bad_records = true;
  for (int round = 0; round < 2; ++round) {  // built, and found again
    const auto cache = open_token_cache(source, options());
    EXPECT_THAT(cache_texts(*cache), ElementsAre("one", "two"));
    const auto& groups = cache->summary().skipped.groups();
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0].reason, "bad");
    EXPECT_EQ(groups[0].count, 2);
    EXPECT_EQ(groups[0].first_place, file + ":2");
    EXPECT_EQ(groups[1].reason, "not readable");
  }
  EXPECT_EQ(maker.made(), 4);
}

TEST_F(CacheBuilderTest, StopsWhenAsked) {
  std::vector<std::string> lines(5000, "line");
  const ByteMaker slow(1, std::chrono::milliseconds(2));
  std::atomic<bool> stop{false};
  TokenCacheOptions stopping = options();
  stopping.stop = &stop;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    stop = true;
  });
  EXPECT_THROW(open_token_cache(line_source({write_lines("a", lines)}, slow), stopping), StoppedError);
  later.join();
  EXPECT_LT(slow.made(), 5000);
  EXPECT_THAT(folders(), IsEmpty());
}

// Every file, damaged in every way: named, and built again.
TEST_F(CacheBuilderTest, DamageIsNamedAndMended) {
  const ByteMaker maker;
  const std::string file = write_lines("a", {"hello", "mask 3", "weights", "split this", "labels"});
  const TokenCacheSource source = line_source({file}, maker);
  const std::string folder = open_token_cache(source, options())->folder();
  const auto texts = cache_texts(*open_token_cache(source, options()));
  EXPECT_THAT(notes_, IsEmpty());
  std::vector<std::string> names = cache_file_names();
  names.emplace_back(kCacheMetaName);
  for (const std::string& name : names) {
    const std::string path = (fs::path(folder) / name).string();
    const std::string whole = read_test_file(path);
    ASSERT_FALSE(whole.empty()) << name;
    std::string flipped = whole;
    flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 4);
    for (const std::string& damaged : {flipped, whole.substr(0, whole.size() / 2), whole + "x", std::string()}) {
      std::ofstream(path, std::ios::binary) << damaged;
      const int64_t made_before = maker.made();
      EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts) << name;
      ASSERT_EQ(notes_.size(), 1u) << name << ": " << damaged.size();
      EXPECT_THAT(notes_[0], AllOf(HasSubstr("damaged"), HasSubstr(name)));
      EXPECT_EQ(maker.made(), made_before + 5);
      EXPECT_EQ(read_test_file(path), whole) << name;  // the same source gives the same bytes
      notes_.clear();
    }
    fs::remove(path);
    EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts) << name;
    EXPECT_EQ(notes_.size(), 1u);
    notes_.clear();
  }
  // Something else in a file's place, where reading would fail or wait for ever.
  for (const std::string& name : names) {
    const std::string path = (fs::path(folder) / name).string();
    fs::remove(path);
    fs::create_directories(path + "/inside");
    EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts) << name;
    EXPECT_THAT(notes_, ElementsAre(AllOf(HasSubstr("damaged"), HasSubstr(name))));
    notes_.clear();
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts) << name;
    EXPECT_THAT(notes_, ElementsAre(AllOf(HasSubstr("damaged"), HasSubstr(name))));
    notes_.clear();
    EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts) << name;
    EXPECT_THAT(notes_, IsEmpty());
  }
  fs::remove_all(folder);
  directory_.write(fs::path(folder).lexically_relative(directory_.path()).string(), "a file in the cache's place");
  EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("damaged")));
  notes_.clear();
  // A folder under another cache's name.
  const std::string other = write_lines("a", {"another"});
  const std::string other_folder = open_token_cache(line_source({other}, maker), options())->folder();
  fs::remove_all(folder);
  fs::rename(other_folder, folder);
  write_lines("a", {"hello", "mask 3", "weights", "split this", "labels"});
  EXPECT_EQ(cache_texts(*open_token_cache(source, options())), texts);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("another cache")));
}

// Threads here, processes below: each takes the lock for itself.
TEST_F(CacheBuilderTest, OneBuildsAndTheOthersWait) {
  std::vector<std::string> lines(400, "line");
  const std::string file = write_lines("a", lines);
  const ByteMaker slow(1, std::chrono::milliseconds(1));
  std::vector<std::thread> threads;
  std::atomic<int64_t> waited{0};
  std::atomic<int64_t> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      TokenCacheOptions own;
      own.folder = directory_.file("caches");
      own.threads = 1;
      own.on_note = [&](const std::string& text) { waited += text.find("waiting") != std::string::npos ? 1 : 0; };
      right += cache_texts(*open_token_cache(line_source({file}, slow), own)) == lines ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 4);
  EXPECT_EQ(slow.made(), 400);
  EXPECT_GE(waited.load(), 1);
}

// Runs `action` in a process of its own.
template <typename Action>
pid_t in_child(const Action& action) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 1;
  try {
    status = action() ? 0 : 1;
  } catch (...) {
    status = 2;
  }
  ::_exit(status);
}

TEST_F(CacheBuilderTest, ProcessesShareOneCache) {
  std::vector<std::string> lines(300, "line");
  const std::string file = write_lines("a", lines);
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(in_child([&] {
      const ByteMaker slow(1, std::chrono::milliseconds(1));
      TokenCacheOptions own;
      own.folder = directory_.file("caches");
      own.threads = 2;
      return cache_texts(*open_token_cache(line_source({file}, slow), own)) == lines;
    }));
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  const ByteMaker maker;
  EXPECT_EQ(cache_texts(*open_token_cache(line_source({file}, maker), options())), lines);
  EXPECT_EQ(maker.made(), 0);
}

// Killed at any time: no cache, and the next one builds it and clears up.
TEST_F(CacheBuilderTest, KilledBuilders) {
  std::vector<std::string> lines(3000, "line");
  const std::string file = write_lines("a", lines);
  const ByteMaker maker;
  for (const int milliseconds : {1, 20, 60, 150}) {
    const pid_t child = in_child([&] {
      const ByteMaker slow(1, std::chrono::milliseconds(1));
      TokenCacheOptions own;
      own.folder = directory_.file("caches");
      own.threads = 1;
      open_token_cache(line_source({file}, slow), own);
      return true;
    });
    ::usleep(static_cast<useconds_t>(milliseconds) * 1000);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    if (!fs::exists(directory_.file("caches"))) continue;
    for (const std::string& name : folders()) {
      EXPECT_THAT(name, testing::AnyOf(HasSubstr(".building"), HasSubstr(".lock")));
    }
  }
  // Another cache's builder clears up too, what nobody is building.
  const std::string other = write_lines("b", {"x", "y"});
  open_token_cache(line_source({other}, maker), options());
  EXPECT_EQ(folders().size(), 1u);
  EXPECT_EQ(cache_texts(*open_token_cache(line_source({file}, maker), options())), lines);
  EXPECT_EQ(folders().size(), 2u);
}

// A lock that is let go is removed; who waited for it, or came in between, is not misled by that.
TEST_F(CacheBuilderTest, LocksThatComeAndGo) {
  const std::string path = directory_.file("x.lock");
  auto first = std::make_unique<FileLock>(path);
  FileLock waiting(path);
  ASSERT_TRUE(first->try_lock());
  ASSERT_FALSE(waiting.try_lock());
  first.reset();
  EXPECT_FALSE(fs::exists(path));
  FileLock third(path);
  ASSERT_TRUE(third.try_lock());
  EXPECT_FALSE(waiting.try_lock());
  EXPECT_TRUE(third.try_lock());  // still held
}

TEST_F(CacheBuilderTest, WhatIsBeingBuiltIsLeftAlone) {
  const std::string folder = directory_.file("caches");
  fs::create_directories(folder + "/abc.building");
  FileLock builder(folder + "/abc.lock");
  ASSERT_TRUE(builder.try_lock());
  const ByteMaker maker;
  open_token_cache(line_source({write_lines("b", {"x", "y"})}, maker), options());
  EXPECT_TRUE(fs::exists(folder + "/abc.building"));
}

TEST_F(CacheBuilderTest, FilesThatChangeMeanwhile) {
  const std::string file = write_lines("a", {"one", "two"});
  const ByteMaker maker;
  TokenCacheSource source = line_source({file}, maker);
  source.open_records = [&] {
    write_lines("a", {"one", "two", "three"});
    return std::make_unique<LineSource>(std::vector<std::string>{file});
  };
  EXPECT_THAT(message_of<InputError>([&] { open_token_cache(source, options()); }),
              AllOf(HasSubstr("changed while"), HasSubstr(file)));
  EXPECT_THAT(folders(), IsEmpty());
}

TEST_F(CacheBuilderTest, AFolderThatCannotBe) {
  const std::string file = write_lines("a", {"one"});
  const ByteMaker maker;
  TokenCacheOptions bad = options();
  bad.folder = directory_.write("a_file", "") + "/caches";
  EXPECT_THAT(message_of<FileError>([&] { open_token_cache(line_source({file}, maker), bad); }),
              HasSubstr("data.cache_dir"));
  EXPECT_THROW(open_token_cache(line_source({directory_.file("absent")}, maker), options()), FileError);
  fs::create_directories(directory_.file("caches/abc.lock"));
  EXPECT_THAT(message_of<FileError>([&] { open_token_cache(line_source({file}, maker), options()); }),
              AllOf(HasSubstr("abc.lock: cannot open"), HasSubstr("data.cache_dir says where token caches are kept")));
  EXPECT_THROW(open_token_cache(line_source({}, maker), options()), ContractError);
}

}  // namespace
}  // namespace ithaca
