// Reads and writes message fields: little-endian, without padding. Used by wire_format.cc, which
// defines the layouts: a function Fields(io, frame), in this namespace, for each frame and list
// item.
//
// Thread-safety: none.
#ifndef KVXFER_CORE_PROTOCOL_WIRE_IO_H_
#define KVXFER_CORE_PROTOCOL_WIRE_IO_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "src/core/base/text.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer::wire {

// Bytes of one list item on the wire. Every item has a fixed size, so that a count can be compared
// with the remaining bytes before anything is allocated.
template <typename Item>
constexpr size_t kItemBytes = sizeof(Item);

template <typename Value>
void StoreLittle(char* out, Value value) {
  for (size_t i = 0; i < sizeof(Value); ++i) {
    out[i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <typename Value>
Value LoadLittle(const std::byte* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Value); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Value>(value);
}

// Writer and Reader have the same calls, so that one Fields(io, frame) defines the layout of a
// frame for both directions. `field` names the field in errors.
class Writer {
 public:
  static constexpr bool kReads = false;

  template <typename Value>
  void Int(const char* /*field*/, Value value) {
    char bytes[sizeof(Value)];
    StoreLittle(bytes, value);
    out_.append(bytes, sizeof(Value));
  }
  void Bool(const char* field, bool value) { Int(field, static_cast<uint8_t>(value ? 1 : 0)); }
  void Id(const char* /*field*/, const Incarnation& id) {
    out_.append(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
  }
  void Slot(const char* field, const SlotRef& ref) {
    Int(field, __builtin_bswap32(EncodeImmediate(ref)));
  }
  void Text(const char* field, const std::string& text, size_t /*min*/, size_t /*max*/) {
    Int(field, static_cast<uint32_t>(text.size()));
    out_.append(text);
  }
  void Name(const char* field, const std::string& name) { Text(field, name, 1, kMaxNameBytes); }
  template <typename Items>
  void List(const char* field, const Items& items) {
    Int(field, static_cast<uint32_t>(items.size()));
    for (const auto& item : items) Fields(*this, item);
  }
  void Check(const char* /*field*/, bool /*good*/, const char* /*rule*/) {}

  // Appends to `header`.
  explicit Writer(std::string header = {}) : out_(std::move(header)) {}
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first error nothing more is read, and Finish returns it.
class Reader {
 public:
  static constexpr bool kReads = true;

  Reader(std::span<const std::byte> body, const char* frame) : left_(body), frame_(frame) {}

  template <typename Value>
  void Int(const char* field, Value& value) {
    if (Have(field, sizeof(Value))) value = LoadLittle<Value>(Skip(sizeof(Value)));
  }
  void Bool(const char* field, bool& value) {
    uint8_t byte = 0;
    Int(field, byte);
    Check(field, byte <= 1, "must be 0 or 1");
    value = byte == 1;
  }
  void Id(const char* field, Incarnation& id) {
    if (Have(field, id.bytes.size())) {
      std::memcpy(id.bytes.data(), Skip(id.bytes.size()), id.bytes.size());
    }
  }
  void Slot(const char* field, SlotRef& ref) {
    uint32_t big_endian = 0;
    Int(field, big_endian);
    ref = DecodeImmediate(__builtin_bswap32(big_endian));
  }
  void Text(const char* field, std::string& text, size_t min, size_t max) {
    uint32_t size = 0;
    Int(field, size);
    if (!Have(field, size)) return;
    if (size < min || size > max) {
      return Fail(field, absl::StrCat(size, " bytes, must be ", min, " to ", max));
    }
    text.assign(reinterpret_cast<const char*>(Skip(size)), size);
  }
  // A name that passes CheckName.
  void Name(const char* field, std::string& name) {
    Text(field, name, 1, kMaxNameBytes);
    if (ok() && !IsPrintable(name)) {
      Fail(field, absl::StrCat("\"", Printable(name, kMaxNameBytes),
                               "\" must be UTF-8 without control characters"));
    }
  }
  template <typename Items>
  void List(const char* field, Items& items) {
    using Item = typename Items::value_type;
    uint32_t count = 0;
    Int(field, count);
    if (!ok()) return;
    // Checked before resize: a damaged count must not allocate memory.
    if (count > left_.size() / kItemBytes<Item>) {
      return Fail(field, absl::StrCat(count, " items of ", kItemBytes<Item>,
                                      " bytes do not fit into the ", left_.size(), " bytes left"));
    }
    items.resize(count);
    for (size_t i = 0; i < count && ok(); ++i) Fields(*this, items[i]);
  }
  void Check(const char* field, bool good, const char* rule) {
    if (ok() && !good) Fail(field, rule);
  }

  absl::Status Finish() {
    if (ok() && !left_.empty()) {
      Fail("end", absl::StrCat(left_.size(), " bytes left over"));
    }
    return status_;
  }

 private:
  bool ok() const { return status_.ok(); }
  bool Have(const char* field, size_t bytes) {
    if (!ok()) return false;
    if (bytes <= left_.size()) return true;
    Fail(field, absl::StrCat("needs ", bytes, " bytes, ", left_.size(), " left"));
    return false;
  }
  const std::byte* Skip(size_t bytes) {
    const std::byte* at = left_.data();
    left_ = left_.subspan(bytes);
    return at;
  }
  void Fail(const char* field, absl::string_view what) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat("damaged ", frame_, " frame: ", field, ": ", what));
  }

  std::span<const std::byte> left_;
  const char* frame_;
  absl::Status status_;
};

template <typename Io, typename T>
using Ref = std::conditional_t<Io::kReads, T&, const T&>;

// An enum of one byte, from `first` to `last`.
template <typename Io, typename Enum>
void EnumField(Io& io, const char* field, Enum& value, uint8_t first, uint8_t last) {
  auto byte = static_cast<uint8_t>(value);
  io.Int(field, byte);
  io.Check(field, byte >= first && byte <= last, "unknown value");
  if constexpr (Io::kReads) value = static_cast<Enum>(byte);
}

}  // namespace kvxfer::wire

#endif  // KVXFER_CORE_PROTOCOL_WIRE_IO_H_
