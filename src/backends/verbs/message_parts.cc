#include "src/backends/verbs/message_parts.h"

#include "absl/strings/str_cat.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::verbs {

template <typename Io>
void Fields(Io& io, wire::Ref<Io, PartHead> head) {
  wire::EnumField(io, "kind", head.kind, static_cast<uint8_t>(PartKind::kCredit),
                  static_cast<uint8_t>(PartKind::kLast));
  io.Bool("waited", head.waited);
  io.Reserved(2);
  io.Int("number", head.number);
  io.Int("received", head.report.received);
  io.Int("granted", head.report.granted);
}

std::array<std::byte, kPartHeadBytes> Encode(const PartHead& head) {
  std::array<std::byte, kPartHeadBytes> bytes;
  wire::FixedWriter writer(bytes.data());
  Fields(writer, head);
  return bytes;
}

absl::StatusOr<PartHead> DecodePartHead(std::span<const std::byte> bytes) {
  if (bytes.size() < kPartHeadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a SEND of ", bytes.size(), " bytes"));
  }
  PartHead head;
  wire::FixedReader reader(bytes.data());
  Fields(reader, head);
  if (absl::Status status = reader.Finish("part"); !status.ok()) return status;
  const bool empty = bytes.size() == kPartHeadBytes;
  if (head.kind == PartKind::kCredit ? !empty : head.kind == PartKind::kMore && empty) {
    return absl::InvalidArgumentError("damaged part frame: a length that its kind does not have");
  }
  return head;
}

absl::StatusOr<bool> PartJoiner::Add(std::span<const std::byte> part, bool more) {
  if (part.size() > max_message_ - joined_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message in parts of more than ", max_message_, " bytes"));
  }
  joined_.append(reinterpret_cast<const char*>(part.data()), part.size());
  return !more;
}

}  // namespace kvxfer::verbs
