#include "src/backends/cuda_ipc/wire.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/codec.h"
#include "src/transport/unix_socket.h"

namespace kvxfer::cuda_ipc {
namespace {

constexpr char kForm[] = "1";
constexpr uint8_t kFirst = 1;  // kind on the wire

}  // namespace

std::string Encode(const MetadataAddress& at) {
  return absl::StrCat(kForm, "|", at.ipc_namespace, "|", at.listener, "|", at.control);
}

absl::StatusOr<MetadataAddress> DecodeMetadataAddress(std::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(text), '|');
  MetadataAddress out;
  if (parts.size() != 4 || parts[0] != kForm || !absl::SimpleAtoi(parts[1], &out.ipc_namespace) ||
      parts[2].empty() || parts[2].size() > net::kMaxUnixName) {
    return absl::InvalidArgumentError(
        "cuda_ipc: the peer's address is not one of this version; both sides need the same kvxfer");
  }
  out.listener = std::string(parts[2]);
  out.control = std::string(parts[3]);
  return out;
}

std::string Encode(const RegionKey& key) {
  return absl::StrCat(kForm, ":", key.region, ":", key.rkey, ":", key.device);
}

absl::StatusOr<RegionKey> DecodeKey(std::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(text), ':');
  RegionKey key;
  if (parts.size() != 4 || parts[0] != kForm || !absl::SimpleAtoi(parts[1], &key.region) ||
      !absl::SimpleAtoi(parts[2], &key.rkey) || key.region == 0) {
    return absl::InvalidArgumentError(
        "cuda_ipc: the region's key is damaged, or of another version; take the metadata again");
  }
  key.device = std::string(parts[3]);
  return key;
}

absl::Status CheckReachable(const HostIdentity& here, const HostIdentity& there) {
  if (here.boot_id.empty() || !here.SameHost(there)) {
    return absl::UnavailableError(absl::StrCat("process ", there.pid, " runs on host ",
                                               there.hostname, ", and this one on ", here.hostname,
                                               "; cuda_ipc stays on one host"));
  }
  const std::string why = net::WhyNotJoined(here, there, "cuda_ipc");
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cuda_ipc cannot reach process ", there.pid, ": ", why));
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Hello> hello) {
  io.Bytes("word", hello.word);
}
template <typename Io>
void Fields(Io& /*io*/, wire::Ref<Io, Joined> /*joined*/) {}
template <typename Io>
void Fields(Io& /*io*/, wire::Ref<Io, OverRings> /*over*/) {}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Remainder> rest) {
  io.Int("more", rest.more);
  io.Int("large", rest.large);
  io.Int("bytes", rest.bytes);
  io.Sized("body", rest.body, rest.bytes);
}

std::string Encode(const Frame& frame) { return wire::EncodeOneOf<kFirst>(frame); }

absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes) {
  return wire::DecodeOneOf<kFirst, Frame>("cuda_ipc", bytes);
}

}  // namespace kvxfer::cuda_ipc
