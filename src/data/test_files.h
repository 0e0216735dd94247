// For tests only: folders that go away again, files in them, and the text of an exception.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace ithaca {

// A new folder below the system's temporary one, removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ithaca-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", std::error_code());
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  // Writes the file and gives its path.
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream stream(file(name), std::ios::binary);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    EXPECT_TRUE(stream.good()) << name;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_test_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream.good()) << path;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// What the exception of type E that `action` throws says; a remark when it throws none.
template <typename E, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

}  // namespace ithaca
