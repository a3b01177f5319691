#include "src/core/base/sysfs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr size_t kMaxSysfsBytes = 1024 * 1024;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view DigitsAt(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && IsDigit(text[end])) ++end;
  return text.substr(at, end - at);
}

}  // namespace

Sysfs::Sysfs(std::string root, std::vector<std::string>* asked)
    : root_(std::move(root)), asked_(asked) {
  while (!root_.empty() && root_.back() == '/') root_.pop_back();
}

absl::Status Sysfs::Check() const {
  std::error_code error;
  if (std::filesystem::is_directory(Full("/sys"), error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(root_.empty() ? "/" : root_,
                   " is not a sysfs tree: it must be a folder that has sys/ (and proc/) in it, as "
                   "/ has"));
}

void Sysfs::Note(std::string_view path) const {
  if (asked_ != nullptr) asked_->emplace_back(path);
}

std::string Sysfs::Full(std::string_view path) const { return absl::StrCat(root_, ToAbsl(path)); }

std::optional<std::string> Sysfs::Read(std::string_view path) const {
  Note(path);
  std::error_code error;
  if (!std::filesystem::is_regular_file(Full(path), error)) return std::nullopt;
  std::ifstream file(Full(path), std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> part;
  do {
    file.read(part.data(), part.size());
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  } while (file && text.size() < kMaxSysfsBytes);
  // Some files exist but cannot be read at the moment, e.g. a netdev's speed while the link is
  // down.
  if (file.bad()) return std::nullopt;
  text.resize(std::min(text.find('\0'), text.size()));
  absl::StripAsciiWhitespace(&text);
  return text;
}

std::optional<int64_t> Sysfs::ReadInt(std::string_view path) const {
  const std::optional<std::string> text = Read(path);
  if (!text) return std::nullopt;
  std::string_view digits = *text;
  const bool hex = digits.starts_with("0x");
  if (hex) digits.remove_prefix(2);
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, value, hex ? 16 : 10);
  if (digits.empty() || error != std::errc() || rest != end) return std::nullopt;
  return value;
}

bool Sysfs::Exists(std::string_view path) const {
  Note(path);
  std::error_code error;
  return std::filesystem::exists(Full(path), error);
}

std::vector<std::string> Sysfs::List(std::string_view path) const {
  Note(path);
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(Full(path), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
    if (asked_ != nullptr) Note(absl::StrCat(ToAbsl(path), "/", names.back()));
  }
  std::sort(names.begin(), names.end(), NaturalLess);
  return names;
}

std::string Sysfs::Resolve(std::string_view path) const {
  Note(path);
  std::error_code error;
  std::string real = std::filesystem::canonical(Full(path), error).string();
  if (error) return {};
  if (root_.empty()) return real;
  const std::string base = std::filesystem::canonical(root_, error).string();
  // A link that leads out of the root would describe another host.
  if (error || !real.starts_with(base + "/")) return {};
  return real.substr(base.size());
}

std::string Sysfs::LinkName(std::string_view path) const {
  Note(path);
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(Full(path), error);
  return error ? std::string() : target.filename().string();
}

bool NaturalLess(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!IsDigit(a[i]) || !IsDigit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const std::string_view left = DigitsAt(a, i);
    const std::string_view right = DigitsAt(b, j);
    // Digit runs are compared as numbers of any length: without leading zeros, the longer one is
    // larger.
    const std::string_view left_value =
        left.substr(std::min(left.find_first_not_of('0'), left.size()));
    const std::string_view right_value =
        right.substr(std::min(right.find_first_not_of('0'), right.size()));
    if (left_value.size() != right_value.size()) return left_value.size() < right_value.size();
    if (left_value != right_value) return left_value < right_value;
    i += left.size();
    j += right.size();
  }
  // Strings that differ only in leading zeros are ordered as text, so that the order is total.
  return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
}

}  // namespace kvxfer
