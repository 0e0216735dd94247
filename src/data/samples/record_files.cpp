#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/error.h"
#include "base/regular_file.h"
#include "data/samples/record_splitter.h"
#include "data/samples/records.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

// Of the kinds that record_kind_of() knows.
constexpr const char* kEndingsText = ".jsonl, .ndjson, .json, .txt, .md, and these followed by .gz or .zst";
// As many names of files that are left out are spelled out in a note.
constexpr size_t kNamesInNotes = 5;

bool is_pattern(std::string_view part) {
  return part.find_first_of("*?[") != std::string_view::npos;
}

// The names in a folder, by their bytes.
std::vector<std::string> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator iterator(folder, error);
  while (!error && iterator != fs::directory_iterator()) {
    names.push_back(iterator->path().filename().string());
    iterator.increment(error);
  }
  if (error) throw FileError(fmt::format("{}: cannot list the folder: {}", folder.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesInNotes); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamesInNotes) text += fmt::format(" and {} more", names.size() - kNamesInNotes);
  return text;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

class Finder {
 public:
  void add(const std::string& path) {
    if (path.empty()) throw ConfigurationError("an empty path is among the data files; remove it or name a file");
    std::error_code ignored;
    if (is_folder(path)) {
      add_folder(path);
    } else if (const std::string kind = irregular_kind(path); !kind.empty()) {
      throw FileError(fmt::format(
          "{}: is {}, not a regular file; data is read more than once, so write it to a file first", path, kind));
    } else if (fs::exists(path, ignored)) {
      result_.files.push_back(path);
    } else if (is_pattern(path)) {
      add_pattern(path);
    } else {
      throw FileError(path + ": there is no such file or folder");
    }
  }

  RecordFiles finish() {
    std::map<std::string, int64_t> times;
    for (const std::string& file : result_.files) {
      std::error_code error;
      const auto size = fs::file_size(file, error);
      if (!error) result_.bytes += static_cast<int64_t>(size);
      ++times[file];
    }
    for (const auto& [file, count] : times) {
      if (count > 1) result_.notes.push_back(fmt::format("{} is named {} times and read as often", file, count));
    }
    return std::move(result_);
  }

 private:
  void add_folder(const std::string& folder) {
    std::vector<std::string> found;
    std::vector<std::string> left_out;
    std::vector<fs::path> ancestors;
    walk(folder, found, left_out, ancestors);
    std::sort(found.begin(), found.end());
    if (found.empty()) {
      const std::vector<std::string>& others = left_out.empty() ? irregular_ : left_out;
      throw InputError(fmt::format("{}: the folder holds no file to read ({}){}", folder, kEndingsText,
                                   others.empty() ? "" : "; it has " + names_text(others)));
    }
    note_irregular(folder);
    if (!left_out.empty()) {
      result_.notes.push_back(
          fmt::format("{}: {} file{} read, left out: {} (folders stand for their files that end in {})", folder,
                      found.size(), found.size() == 1 ? " is" : "s are", names_text(left_out), kEndingsText));
    }
    result_.files.insert(result_.files.end(), found.begin(), found.end());
    result_.left_out.insert(result_.left_out.end(), left_out.begin(), left_out.end());
  }

  void walk(const fs::path& folder, std::vector<std::string>& found, std::vector<std::string>& left_out,
            std::vector<fs::path>& ancestors) {
    std::error_code ignored;
    const fs::path canonical = fs::canonical(folder, ignored);
    // A link to a folder above would be walked for ever.
    if (std::find(ancestors.begin(), ancestors.end(), canonical) != ancestors.end()) {
      left_out.push_back(folder.string() + "/");
      return;
    }
    ancestors.push_back(canonical);
    for (const std::string& name : names_in(folder)) {
      const fs::path path = folder / name;
      const bool is_hidden = name.front() == '.';
      if (is_folder(path)) {
        if (is_hidden) {
          left_out.push_back(path.string() + "/");
        } else {
          walk(path, found, left_out, ancestors);
        }
      } else if (is_hidden || record_kind_of(name) == RecordKind::kUnknown) {
        left_out.push_back(path.string());
      } else if (!fs::exists(path, ignored)) {
        throw FileError(path.string() + ": is a link to a file that does not exist");
      } else if (!is_irregular(path)) {
        found.push_back(path.string());
      }
    }
    ancestors.pop_back();
  }

  void add_pattern(const std::string& pattern) {
    std::vector<std::string> parts;
    const fs::path path(pattern);
    for (const fs::path& part : path.relative_path()) {
      if (!part.empty()) parts.push_back(part.string());
    }
    std::vector<std::string> found;
    std::vector<std::string> folders;
    expand(path.root_path(), parts, 0, found, folders);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    if (found.empty()) {
      std::string others = folders.empty() ? "" : "; the folder " + folders.front() + " does: name it itself";
      if (!irregular_.empty()) others += "; not regular files: " + names_text(irregular_);
      throw InputError(fmt::format("{}: no file matches{}", pattern, others));
    }
    note_irregular(pattern);
    for (const std::string& folder : folders) result_.left_out.push_back(folder + "/");
    if (!folders.empty()) {
      result_.notes.push_back(
          fmt::format("{}: matches that are folders are left out: {}", pattern, names_text(folders)));
    }
    result_.files.insert(result_.files.end(), found.begin(), found.end());
  }

  // Matches parts [index, ...) below `base`, which is empty for the working directory.
  void expand(const fs::path& base, const std::vector<std::string>& parts, size_t index,
              std::vector<std::string>& found, std::vector<std::string>& folders) {
    const std::string& part = parts[index];
    const bool is_last = index + 1 == parts.size();
    const auto take = [&](const fs::path& path) {
      std::error_code ignored;
      if (!is_last) {
        if (is_folder(path)) expand(path, parts, index + 1, found, folders);
      } else if (is_folder(path)) {
        folders.push_back(path.string());
      } else if (fs::exists(path, ignored) && !is_irregular(path)) {
        found.push_back(path.string());
      }
    };
    if (!is_pattern(part)) return take(base / part);
    const fs::path folder = base.empty() ? fs::path(".") : base;
    if (!is_folder(folder)) return;
    const bool is_any_depth = part == "**";
    // `**` stands for no folder too; as the last part it means every file below.
    if (is_any_depth && !is_last) expand(base, parts, index + 1, found, folders);
    for (const std::string& name : names_in(folder)) {
      const fs::path path = base / name;
      if (!is_any_depth) {
        if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) take(path);
      } else if (name.front() != '.') {
        std::error_code ignored;
        if (is_folder(path)) {
          if (!fs::is_symlink(path, ignored)) expand(path, parts, index, found, folders);  // as shells do: no cycles
        } else if (is_last && fs::exists(path, ignored) && !is_irregular(path)) {
          found.push_back(path.string());
        }
      }
    }
  }

  // Notes what reading would wait for or never end with: FIFOs, sockets and devices among the files that are looked
  // for.
  bool is_irregular(const fs::path& path) {
    const std::string kind = irregular_kind(path.string());
    if (kind.empty()) return false;
    irregular_.push_back(fmt::format("{} ({})", path.string(), kind));
    irregular_paths_.push_back(path.string());
    return true;
  }

  void note_irregular(const std::string& where) {
    if (irregular_.empty()) return;
    result_.notes.push_back(
        fmt::format("{}: left out, for they are not regular files: {}", where, names_text(irregular_)));
    result_.left_out.insert(result_.left_out.end(), irregular_paths_.begin(), irregular_paths_.end());
    irregular_.clear();
    irregular_paths_.clear();
  }

  RecordFiles result_;
  // Of the path that is being looked at: with what they are, and without.
  std::vector<std::string> irregular_;
  std::vector<std::string> irregular_paths_;
};

}  // namespace

RecordFiles find_record_files(const std::vector<std::string>& paths) {
  if (paths.empty()) throw ConfigurationError("no data file is named; name files, folders or patterns");
  Finder finder;
  for (const std::string& path : paths) finder.add(path);
  return finder.finish();
}

}  // namespace ithaca
