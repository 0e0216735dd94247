#include "checkpoint/file_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/line_output.h"
#include "data/test_files.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::string& path) {
  return message_of<FileError>([&] { write_whole_file(path, "new"); });
}

TEST(FileOutput, AppearsWholeOrNotAtAll) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("file", "old");
  {
    FileOutput output(path);
    output.write("half of it");
    EXPECT_EQ(read_whole_file(path), "old");
  }
  EXPECT_EQ(read_whole_file(path), "old");
  write_whole_file(path, "new");
  EXPECT_EQ(read_whole_file(path), "new");
  EXPECT_FALSE(fs::exists(path + ".partial"));
}

TEST(FileOutput, LinksStayAndWhatTheyNameIsWritten) {
  const TemporaryDirectory folder;
  fs::create_directories(folder.file("there/below"));
  fs::create_symlink("there/below/file", folder.file("dangling"));
  fs::create_symlink(folder.file("dangling"), folder.file("link"));
  fs::create_directory_symlink("there/below", folder.file("folder"));
  fs::create_symlink("../file", folder.file("there/below/up"));
  for (const char* content : {"first", "second"}) {
    write_whole_file(folder.file("link"), content);
    EXPECT_TRUE(fs::is_symlink(folder.file("link")));
    EXPECT_TRUE(fs::is_symlink(folder.file("dangling")));
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder.file("there/below/file"))));
    EXPECT_EQ(read_whole_file(folder.file("link")), content);
  }
  // The link is in a folder that is reached through a link itself.
  write_whole_file(folder.file("folder/up"), "third");
  EXPECT_EQ(read_whole_file(folder.file("there/file")), "third");
  fs::create_symlink("circle", folder.file("circle"));
  EXPECT_THAT(refusal(folder.file("circle")), AllOf(HasSubstr("circle: cannot create"), HasSubstr("symbolic links")));
  EXPECT_THAT(refusal(folder.file("absent/file")), HasSubstr("cannot create: No such file or directory"));
}

// Renaming over them would put a file in their place.
TEST(FileOutput, DevicesFifosAndFoldersAreRefused) {
  const TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", folder.file("link"));
  for (const char* name : {"fifo", "link"}) {
    EXPECT_THAT(refusal(folder.file(name)), HasSubstr(std::string(name) + ": is a FIFO, not a file"));
  }
  EXPECT_TRUE(fs::is_fifo(folder.file("fifo")));
  fs::create_directory(folder.file("folder"));
  EXPECT_THAT(refusal(folder.file("folder")), HasSubstr("folder: is a directory, not a file"));
  EXPECT_EQ(refusal("/dev/null"), "/dev/null: is a device, not a file, and is left as it is; name a file");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  // What stands where the unfinished file would.
  ASSERT_EQ(::mkfifo(folder.file("x.partial").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder.file("x")), HasSubstr("x.partial: is a FIFO"));
  folder.write("kept", "kept");
  fs::create_symlink("kept", folder.file("y.partial"));
  EXPECT_THAT(refusal(folder.file("y")), HasSubstr("cannot create"));
  EXPECT_EQ(read_whole_file(folder.file("kept")), "kept");
}

// Whatever they lead to, be it a file.
TEST(FileOutput, OpenStreamsAreRefused) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("file", "kept");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  const std::string stream = "/proc/self/fd/" + std::to_string(descriptor);
  fs::create_symlink(stream, folder.file("link"));
  EXPECT_THAT(refusal(stream), HasSubstr("is an open stream of a process, not a file"));
  EXPECT_THAT(refusal("/dev/fd/" + std::to_string(descriptor)), HasSubstr("is an open stream"));
  EXPECT_THAT(refusal("/dev/stdout"), HasSubstr("/dev/stdout: is an open stream"));
  EXPECT_THAT(refusal(folder.file("link")), HasSubstr("link: is an open stream"));
  EXPECT_EQ(read_whole_file(path), "kept");
  ::close(descriptor);
}

// A file that may not grow is what a full disk is to a program.
TEST(LineOutput, ALineThatHasNoRoomLeavesNothing) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("lines", "earlier");
  LineOutput lines(path);
  lines.write("0123456789");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{20, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string refusal = message_of<FileError>([&] { lines.write("a line of which a part has room"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_THAT(refusal, HasSubstr(path + ": cannot write: File too large"));
  EXPECT_EQ(read_whole_file(path), "0123456789\n");
  lines.write("next");
  EXPECT_EQ(read_whole_file(path), "0123456789\nnext\n");
}

TEST(LineOutput, WhatHasNoSizeWillDoAndWhatCannotBeMadeIsNamed) {
  LineOutput("/dev/null").write("line");
  const TemporaryDirectory folder;
  const std::string path = folder.file("no/such/folder/lines");
  EXPECT_THAT(message_of<FileError>([&] { LineOutput lines(path); }), HasSubstr(path + ": cannot create: "));
}

TEST(ReadWholeFile, ReadsFilesAlone) {
  const TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  EXPECT_THAT(message_of<FileError>([&] { read_whole_file(folder.file("fifo")); }), HasSubstr("is a FIFO"));
}

}  // namespace
}  // namespace ithaca
