#include "examples/disagg_cpu/message.h"

#include <concepts>
#include <cstring>
#include <type_traits>

namespace disagg {
namespace {

template <typename T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// Both ends are the same program, so plain values travel as they lie in memory.
class Writer {
 public:
  void operator()(const Plain auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <typename T>
  void operator()(const std::vector<T>& list) {
    (*this)(static_cast<uint64_t>(list.size()));
    for (const T& item : list) (*this)(item);
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<uint64_t>(text.size()));
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <Plain T>
  void operator()(T& value) {
    if (Has(sizeof value)) std::memcpy(&value, Cut(sizeof value), sizeof value);
  }
  template <typename T>
  void operator()(std::vector<T>& list) {
    uint64_t size = 0;
    (*this)(size);
    if (!Has(size)) return;  // an item has a byte at least
    list.resize(size);
    for (T& item : list) (*this)(item);
  }
  void operator()(std::string& text) {
    uint64_t size = 0;
    (*this)(size);
    if (Has(size)) text.assign(reinterpret_cast<const char*>(Cut(size)), size);
  }

  bool whole() const { return ok_ && left_.empty(); }

 private:
  bool Has(uint64_t bytes) { return ok_ = ok_ && bytes <= left_.size(); }
  const std::byte* Cut(size_t bytes) {
    const std::byte* const at = left_.data();
    left_ = left_.subspan(bytes);
    return at;
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

// `Message` is const for a Writer.
template <typename Archive, typename Message>
void CommandFields(Archive& archive, Message& m) {
  archive(m.ask);
  archive(m.metadata);
  archive(m.request);
  archive(m.blocks);
  archive(m.target.group);
  archive(m.target.blocks);
  archive(m.prompt);
  archive(m.arrives);
  archive(m.most_tokens);
  archive(m.move_after);
  archive(m.spoil);
}

template <typename Archive, typename Message>
void ReplyFields(Archive& archive, Message& m) {
  archive(m.error);
  archive(m.metadata);
  archive(m.tokens);
  archive(m.path);
  archive(m.bytes);
  archive(m.tail_bytes);
  archive(m.tokens_meanwhile);
  archive(m.first_layer_lead_ns);
  archive(m.pause_ns);
}

}  // namespace

std::vector<std::byte> Encode(const Command& command) {
  Writer writer;
  CommandFields(writer, command);
  return std::move(writer).Take();
}

std::vector<std::byte> Encode(const Reply& reply) {
  Writer writer;
  ReplyFields(writer, reply);
  return std::move(writer).Take();
}

absl::StatusOr<Command> DecodeCommand(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Command command;
  CommandFields(reader, command);
  if (!reader.whole()) return absl::InternalError("that is no command");
  return command;
}

absl::StatusOr<Reply> DecodeReply(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Reply reply;
  ReplyFields(reader, reply);
  if (!reader.whole()) return absl::InternalError("that is no reply");
  return reply;
}

}  // namespace disagg
