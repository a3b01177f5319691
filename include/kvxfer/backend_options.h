// The options of a backend, from and to the text in which AgentOptions::backend holds them.
//
// A backend describes its options once. `Fields` names each option, its range and its unit; it
// serves reading and writing:
//
//   struct MyOptions {
//     std::vector<std::string> devices{};
//     uint32_t depth = 1024;
//     kvxfer::Duration timeout = std::chrono::seconds(1);
//   };
//   template <typename Io>
//   void Fields(Io& io, kvxfer::OptionRef<Io, MyOptions> options) {
//     io.List("devices", options.devices);
//     io.Number("depth", options.depth, 16, 32768);
//     io.Time("timeout_ms", options.timeout, std::chrono::milliseconds(1));
//   }
//
// The backend reads its section, and a caller that has the struct at hand writes one:
//
//   absl::StatusOr<MyOptions> mine = kvxfer::ReadOptions<MyOptions>("mine", context.options);
//   agent_options.backend["mine"] = kvxfer::WriteOptions(MyOptions{.depth = 64});
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKEND_OPTIONS_H_
#define KVXFER_BACKEND_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/options.h"
#include "kvxfer/types.h"

namespace kvxfer {

// Out of a section. What the section does not name keeps the value that it has; what is empty
// counts as not named. The first error is kept.
class OptionReader {
 public:
  static constexpr bool kReads = true;

  // `backend` and `section` must outlive the reader.
  OptionReader(std::string_view backend, const BackendOptions& section)
      : backend_(backend), section_(section) {}

  void Text(std::string_view key, std::string& out);
  // Values with commas between them; none of them is empty.
  void List(std::string_view key, std::vector<std::string>& out);
  // 0 or 1.
  void Flag(std::string_view key, bool& out);
  void Real(std::string_view key, double& out, double low, double high);
  // The number of `unit`s; the key should end in the unit's name, as in "timeout_ms".
  void Time(std::string_view key, Duration& out, Duration unit, Duration low = {},
            Duration high = std::chrono::hours(24 * 365));
  template <typename Integer>
  void Number(std::string_view key, Integer& out, std::type_identity_t<Integer> low,
              std::type_identity_t<Integer> high) {
    static_assert(std::is_integral_v<Integer>);
    if constexpr (std::is_same_v<Integer, uint64_t>) {
      Unsigned(key, out, low, high);
    } else {
      int64_t value = out;
      Signed(key, value, low, high);
      out = static_cast<Integer>(value);
    }
  }

  // InvalidArgument: an option does not parse or is out of range, or the section names an option
  // that was not read. The message names the backend, the option, the environment variable and the
  // rule.
  absl::Status Finish() const;

 private:
  // Null: not named.
  const std::string* Find(std::string_view key);
  void Refuse(std::string_view key, std::string_view value, std::string_view rule);
  void Signed(std::string_view key, int64_t& out, int64_t low, int64_t high);
  void Unsigned(std::string_view key, uint64_t& out, uint64_t low, uint64_t high);

  const std::string_view backend_;
  const BackendOptions& section_;
  std::vector<std::string> keys_;  // all that were asked for
  absl::Status status_;
};

// Into a section: every option, with its value.
class OptionWriter {
 public:
  static constexpr bool kReads = false;

  void Text(std::string_view key, const std::string& value) { Set(key, value); }
  void List(std::string_view key, const std::vector<std::string>& values);
  void Flag(std::string_view key, bool value) { Set(key, value ? "1" : "0"); }
  void Real(std::string_view key, double value, double low, double high);
  void Time(std::string_view key, Duration value, Duration unit, Duration /*low*/ = {},
            Duration /*high*/ = {}) {
    Set(key, std::to_string(value / unit));
  }
  template <typename Integer>
  void Number(std::string_view key, Integer value, std::type_identity_t<Integer> /*low*/,
              std::type_identity_t<Integer> /*high*/) {
    Set(key, std::to_string(value));
  }

  BackendOptions Take() { return std::move(section_); }

 private:
  void Set(std::string_view key, std::string value) {
    section_.insert_or_assign(std::string(key), std::move(value));
  }

  BackendOptions section_;
};

template <typename Io, typename Options>
using OptionRef = std::conditional_t<Io::kReads, Options&, const Options&>;

// The section of `backend`, over the defaults of `Options`. Errors are those of
// OptionReader::Finish.
template <typename Options>
absl::StatusOr<Options> ReadOptions(std::string_view backend, const AgentOptions& options) {
  static const BackendOptions* const kNone = new BackendOptions();
  const auto section = options.backend.find(std::string(backend));
  OptionReader reader(backend, section == options.backend.end() ? *kNone : section->second);
  Options out;
  Fields(reader, out);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return out;
}

template <typename Options>
BackendOptions WriteOptions(const Options& options) {
  OptionWriter writer;
  Fields(writer, options);
  return writer.Take();
}

}  // namespace kvxfer

#endif  // KVXFER_BACKEND_OPTIONS_H_
