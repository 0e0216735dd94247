#include "base/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace ithaca {
namespace {

using testing::HasSubstr;

class RegularFile : public testing::Test {
 protected:
  RegularFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ithaca-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw FileError("no temporary folder");
    folder_ = pattern;
  }
  ~RegularFile() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string refusal(const std::string& path) {
    try {
      read_regular_file(path);
    } catch (const FileError& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  std::filesystem::path folder_;
};

TEST_F(RegularFile, IsReadWhole) {
  const std::string content = std::string(200000, 'x') + std::string("\0end", 4);
  std::ofstream(path("file"), std::ios::binary) << content;
  std::filesystem::create_symlink("file", path("link"));
  EXPECT_EQ(read_regular_file(path("file")), content);
  EXPECT_EQ(read_regular_file(path("link")), content);
  EXPECT_EQ(irregular_kind(path("link")), "");
  EXPECT_EQ(irregular_kind(path("absent")), "");
  EXPECT_THAT(refusal(path("absent")), HasSubstr("absent: cannot open: No such file"));
}

// At once: nobody writes to the FIFO, and the devices have no end or nothing.
TEST_F(RegularFile, NothingElseIs) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("fifo", path("link"));
  EXPECT_EQ(refusal(path("fifo")), path("fifo") + ": is a FIFO, not a regular file");
  EXPECT_EQ(refusal(path("link")), path("link") + ": is a FIFO, not a regular file");
  EXPECT_EQ(refusal("/dev/zero"), "/dev/zero: is a device, not a regular file");
  EXPECT_EQ(refusal(folder_.string()), folder_.string() + ": is a directory, not a regular file");

  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_GE(listener, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path("socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(irregular_kind(path("socket")), "a socket");
  EXPECT_THAT(refusal(path("socket")), HasSubstr("is a socket"));
  ::close(listener);
}

}  // namespace
}  // namespace ithaca
