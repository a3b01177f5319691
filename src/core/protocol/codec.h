// Frames to bytes and back. The layout of a frame is written once, as a function
//
//   template <typename Io>
//   void Fields(Io& io, wire::Ref<Io, Offer> offer) {
//     io.Int("rail", offer.rail);
//     io.Words("why", offer.why, kMaxText);
//     io.Check("rail", offer.rail < kMaxRails, "must be below 16");
//   }
//
// in the namespace of the frame, and serves both directions:
//
//   std::string bytes = wire::Encode(offer);
//   absl::StatusOr<Offer> offer = wire::Decode<Offer>("offer", bytes);
//
// Integers are little-endian, without padding. Decoding never trusts a length.
//
// Thread-safety: none; each Io belongs to one thread.

#ifndef KVXFER_CORE_PROTOCOL_CODEC_H_
#define KVXFER_CORE_PROTOCOL_CODEC_H_

#include <endian.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kvxfer/types.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::wire {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "StoreLittle and LoadLittle copy integers");

template <typename Value>
void StoreLittle(void* out, Value value) {
  std::memcpy(out, &value, sizeof(Value));
}

template <typename Value>
Value LoadLittle(const std::byte* in) {
  Value value;
  std::memcpy(&value, in, sizeof(Value));
  return value;
}

// Bytes of an item of a List on the wire. Each item has a fixed size, so that the count of a list
// is checked against the bytes that are left before anything is allocated.
template <typename Item>
constexpr size_t kItemBytes = sizeof(Item);

// Writers and readers offer the same calls. `field` names the field in errors; bounds are checked
// by readers, and are the caller's to keep when it writes.
template <typename Self>
class WriterCalls {
 public:
  static constexpr bool kReads = false;

  template <typename Value>
  void Int(const char* /*field*/, Value value) {
    static_assert(std::is_integral_v<Value>);
    self().Put(&value, sizeof(value));
  }
  void BigEndian(const char* field, uint32_t value) { Int(field, htobe32(value)); }
  void Bool(const char* field, bool value) { Int(field, static_cast<uint8_t>(value ? 1 : 0)); }
  template <typename Byte, size_t kSize>
  void Bytes(const char* /*field*/, const std::array<Byte, kSize>& bytes) {
    static_assert(sizeof(Byte) == 1);
    self().Put(bytes.data(), kSize);
  }
  void Id(const char* field, const Incarnation& id) { Bytes(field, id.bytes); }
  // 32-bit length, then the bytes.
  void Text(const char* field, std::string_view text, size_t /*min*/, size_t /*max*/) {
    Int(field, static_cast<uint32_t>(text.size()));
    self().Put(text.data(), text.size());
  }
  // As Text, of a name that CheckName takes.
  void Name(const char* field, std::string_view name) { Text(field, name, 1, kMaxNameBytes); }
  // 16-bit length, then the bytes; what is longer than `max` is cut.
  void Short(const char* field, std::string_view text, size_t max) {
    text = text.substr(0, max);
    Int(field, static_cast<uint16_t>(text.size()));
    self().Put(text.data(), text.size());
  }
  // As Short, of a text for a person, which a reader makes fit for a log.
  void Words(const char* field, std::string_view text, size_t max) { Short(field, text, max); }
  // Bytes whose number an earlier field has said.
  void Sized(const char* /*field*/, std::string_view text, size_t /*size*/) {
    self().Put(text.data(), text.size());
  }
  // Such a text as the rest of the frame, without a length.
  void RestOfWords(const char* /*field*/, std::string_view text, size_t max) {
    text = text.substr(0, max);
    self().Put(text.data(), text.size());
  }
  // 32-bit count, then the items.
  template <typename Items>
  void List(const char* field, const Items& items) {
    Int(field, static_cast<uint32_t>(items.size()));
    for (const auto& item : items) Fields(self(), item);
  }
  // 8-bit count, then the items, which may differ in size.
  template <typename Items>
  void ShortList(const char* field, const Items& items, size_t /*max*/) {
    Int(field, static_cast<uint8_t>(items.size()));
    for (const auto& item : items) Fields(self(), item);
  }
  // `bytes` zeros, which a reader passes over.
  void Reserved(size_t bytes) { self().PutZeros(bytes); }
  void Check(const char* /*field*/, bool /*good*/, const char* /*rule*/) {}

 private:
  Self& self() { return *static_cast<Self*>(this); }
};

// Into a string that grows.
class Writer : public WriterCalls<Writer> {
 public:
  // What is written goes behind `header`.
  explicit Writer(std::string header = {}) : out_(std::move(header)) {}
  void Put(const void* bytes, size_t size) { out_.append(static_cast<const char*>(bytes), size); }
  void PutZeros(size_t bytes) { out_.append(bytes, '\0'); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Into memory of the caller that holds the whole frame.
class FixedWriter : public WriterCalls<FixedWriter> {
 public:
  explicit FixedWriter(std::byte* out) : at_(out) {}
  void Put(const void* bytes, size_t size) {
    std::memcpy(at_, bytes, size);
    at_ += size;
  }
  void PutZeros(size_t bytes) {
    std::memset(at_, 0, bytes);
    at_ += bytes;
  }

 private:
  std::byte* at_;
};

// What both readers share: they differ in where the next bytes come from and how errors are kept.
template <typename Self>
class ReaderCalls {
 public:
  static constexpr bool kReads = true;

  template <typename Value>
  void Int(const char* field, Value& value) {
    static_assert(std::is_integral_v<Value>);
    if (const std::byte* at = self().Take(field, sizeof(Value))) value = LoadLittle<Value>(at);
  }
  void BigEndian(const char* field, uint32_t& value) {
    uint32_t big = 0;
    Int(field, big);
    value = be32toh(big);
  }
  void Bool(const char* field, bool& value) {
    uint8_t byte = 0;
    Int(field, byte);
    self().Check(field, byte <= 1, "must be 0 or 1");
    value = byte == 1;
  }
  template <typename Byte, size_t kSize>
  void Bytes(const char* field, std::array<Byte, kSize>& bytes) {
    static_assert(sizeof(Byte) == 1);
    if (const std::byte* at = self().Take(field, kSize)) std::memcpy(bytes.data(), at, kSize);
  }
  void Id(const char* field, Incarnation& id) { Bytes(field, id.bytes); }
  void Reserved(size_t bytes) { self().Take("reserved", bytes); }

 private:
  Self& self() { return *static_cast<Self*>(this); }
};

// Out of a frame of any length. After the first error nothing more is read.
class Reader : public ReaderCalls<Reader> {
 public:
  // `frame` is how errors call it, e.g. "lease-read".
  Reader(std::span<const std::byte> body, const char* frame) : left_(body), frame_(frame) {}

  void Text(const char* field, std::string& text, size_t min, size_t max) {
    uint32_t size = 0;
    Int(field, size);
    Assign(field, text, size, min, max);
  }
  void Name(const char* field, std::string& name) {
    Text(field, name, 1, kMaxNameBytes);
    if (ok() && !IsPrintable(name)) {
      Fail(field, absl::StrCat("\"", Printable(name, kMaxNameBytes),
                               "\" must be UTF-8 without control characters"));
    }
  }
  void Short(const char* field, std::string& text, size_t max) {
    uint16_t size = 0;
    Int(field, size);
    Assign(field, text, size, 0, max);
  }
  void Words(const char* field, std::string& text, size_t max) {
    Short(field, text, max);
    text = Printable(text, max);
  }
  void Sized(const char* field, std::string& text, size_t size) {
    Assign(field, text, size, 0, size);
  }
  void RestOfWords(const char* field, std::string& text, size_t max) {
    Assign(field, text, left_.size(), 0, max);
    text = Printable(text, max);
  }
  template <typename Items>
  void List(const char* field, Items& items) {
    using Item = typename Items::value_type;
    uint32_t count = 0;
    Int(field, count);
    if (!ok()) return;
    if (count > left_.size() / kItemBytes<Item>) {
      return Fail(field, absl::StrCat(count, " items of ", kItemBytes<Item>,
                                      " bytes do not fit into the ", left_.size(), " bytes left"));
    }
    items.resize(count);
    for (size_t i = 0; i < count && ok(); ++i) Fields(*this, items[i]);
  }
  template <typename Items>
  void ShortList(const char* field, Items& items, size_t max) {
    uint8_t count = 0;
    Int(field, count);
    if (ok() && count > max) Fail(field, absl::StrCat(int{count}, " items, must be at most ", max));
    for (size_t i = 0; i < count && ok(); ++i) Fields(*this, items.emplace_back());
  }
  void Check(const char* field, bool good, const char* rule) {
    if (ok() && !good) Fail(field, rule);
  }

  const std::byte* Take(const char* field, size_t bytes) {
    if (!ok()) return nullptr;
    if (bytes > left_.size()) {
      Fail(field, absl::StrCat("needs ", bytes, " bytes, ", left_.size(), " left"));
      return nullptr;
    }
    const std::byte* at = left_.data();
    left_ = left_.subspan(bytes);
    return at;
  }
  absl::Status Finish() {
    if (ok() && !left_.empty()) Fail("end", absl::StrCat(left_.size(), " bytes left over"));
    return status_;
  }

 private:
  bool ok() const { return status_.ok(); }
  void Assign(const char* field, std::string& text, size_t size, size_t min, size_t max) {
    if (!ok()) return;
    if (size <= left_.size() && (size < min || size > max)) {
      return Fail(field, absl::StrCat(size, " bytes, must be ", min, " to ", max));
    }
    const std::byte* at = Take(field, size);
    if (at != nullptr) text.assign(reinterpret_cast<const char*>(at), size);
  }
  void Fail(const char* field, absl::string_view what) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat("damaged ", frame_, " frame: ", field, ": ", what));
  }

  std::span<const std::byte> left_;
  const char* frame_;
  absl::Status status_;
};

// Out of a frame of fixed length, all of which is there: heads that come once an op or a run, so
// that reading one costs its loads and nothing else. It has no fields of variable length.
class FixedReader : public ReaderCalls<FixedReader> {
 public:
  explicit FixedReader(const std::byte* in) : at_(in) {}
  void Check(const char* field, bool good, const char* rule) {
    if (good || bad_ != nullptr) return;
    bad_ = field;
    rule_ = rule;
  }
  const std::byte* Take(const char* /*field*/, size_t bytes) {
    return std::exchange(at_, at_ + bytes);
  }
  absl::Status Finish(const char* frame) const {
    if (bad_ == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("damaged ", frame, " frame: ", bad_, ": ", rule_));
  }

 private:
  const std::byte* at_;
  const char* bad_ = nullptr;  // the field that a rule does not hold for, and the rule
  const char* rule_ = nullptr;
};

template <typename Io, typename T>
using Ref = std::conditional_t<Io::kReads, T&, const T&>;

// An enum as wide as its type, between `first` and `last`.
template <typename Io, typename Enum>
void EnumField(Io& io, const char* field, Enum& value, std::underlying_type_t<Enum> first,
               std::underlying_type_t<Enum> last) {
  auto number = static_cast<std::underlying_type_t<Enum>>(value);
  io.Int(field, number);
  io.Check(field, number >= first && number <= last, "unknown value");
  if constexpr (Io::kReads) value = static_cast<Enum>(number);
}

// A constant; `rule` is what another value means.
template <typename Io, typename Value>
void Constant(Io& io, const char* field, Value constant, const char* rule) {
  Value value = constant;
  io.Int(field, value);
  io.Check(field, value == constant, rule);
}

// Bytes that are zero, and must be.
template <size_t kBytes, typename Io>
void Zeros(Io& io) {
  std::array<std::byte, kBytes> zeros{};
  io.Bytes("reserved", zeros);
  io.Check("reserved", std::ranges::all_of(zeros, [](std::byte b) { return b == std::byte{0}; }),
           "must be 0");
}

template <typename Frame>
std::string Encode(const Frame& frame) {
  Writer writer;
  Fields(writer, frame);
  return writer.Take();
}

// InvalidArgument names the frame, the field and the rule; bytes left over are an error.
template <typename Frame>
absl::StatusOr<Frame> Decode(const char* name, std::span<const std::byte> bytes) {
  Reader reader(bytes, name);
  Frame frame;
  Fields(reader, frame);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return frame;
}

// Nothing where it is damaged, for those that say so themselves.
template <typename Frame>
std::optional<Frame> TryDecode(std::string_view bytes) {
  auto frame = Decode<Frame>("", std::as_bytes(std::span(bytes)));
  if (!frame.ok()) return std::nullopt;
  return *std::move(frame);
}

// Frames of fixed length, in `out` and `in` as a whole.
template <typename Frame>
void EncodeFixed(const Frame& frame, std::byte* out) {
  FixedWriter writer(out);
  Fields(writer, frame);
}

template <typename Frame>
absl::StatusOr<Frame> DecodeFixed(const char* name, const std::byte* in) {
  FixedReader reader(in);
  Frame frame;
  Fields(reader, frame);
  if (absl::Status status = reader.Finish(name); !status.ok()) return status;
  return frame;
}

// One of several frames: a byte that says which, counted from `first` in the order of the variant.
template <uint8_t first, typename... Frames>
std::string EncodeOneOf(const std::variant<Frames...>& frame) {
  Writer writer;
  writer.Int("kind", static_cast<uint8_t>(frame.index() + first));
  std::visit([&writer](const auto& one) { Fields(writer, one); }, frame);
  return writer.Take();
}

template <uint8_t first, typename Variant, size_t index = 0>
absl::StatusOr<Variant> DecodeOneOf(const char* name, std::span<const std::byte> bytes) {
  if constexpr (index == std::variant_size_v<Variant>) {
    return absl::InvalidArgumentError(absl::StrCat("damaged ", name, " frame: unknown kind"));
  } else {
    if (bytes.empty() || std::to_integer<size_t>(bytes[0]) != first + index) {
      return DecodeOneOf<first, Variant, index + 1>(name, bytes);
    }
    auto frame = Decode<std::variant_alternative_t<index, Variant>>(name, bytes.subspan(1));
    if (!frame.ok()) return frame.status();
    return Variant(std::in_place_index<index>, *std::move(frame));
  }
}

}  // namespace kvxfer::wire

#endif  // KVXFER_CORE_PROTOCOL_CODEC_H_
