// Encoding and decoding of frames, hellos, welcomes and addresses.

#include "src/backends/ucx/frames.h"

#include "src/core/protocol/codec.h"
#include "src/transport/hello.h"

namespace kvxfer::ucx {
namespace {

using net::Damaged;

constexpr uint8_t kFrameMagic = 0x55;
constexpr std::string_view kAddressMagic = "kvxfer-ucx-2;";
constexpr size_t kMaxBootId = 64;
// The part of a hello before boot_id and the worker's address. Bytes 68 to 71 are unused.
constexpr size_t kHelloFixed = 80;
static_assert(kMaxWorkerBytes + kHelloFixed + kMaxBootId <= kMaxBodyBytes);

}  // namespace

template <typename Io>
void Fields(Io& io, wire::Ref<Io, FrameHead> head) {
  wire::Constant(io, "magic", kFrameMagic, "not a ucx frame");
  wire::EnumField(io, "kind", head.kind, static_cast<uint8_t>(FrameKind::kHello),
                  static_cast<uint8_t>(FrameKind::kCredit));
  io.Int("flags", head.flags);
  io.Int("bytes", head.bytes);
  io.Check("bytes", head.bytes <= kMaxBodyBytes, "too many");
  io.Int("cookie", head.cookie);
  io.Int("order", head.order);
  io.Int("transfer", head.transfer);
  io.Int("number", head.number);
  io.BigEndian("immediate", head.immediate);
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Hello> hello) {
  auto boot_id_bytes = static_cast<uint16_t>(hello.host.boot_id.size());
  auto worker_bytes = static_cast<uint16_t>(hello.worker.size());
  uint16_t reports_failure = hello.reports_failure ? 1 : 0;
  io.Int("version", hello.version);
  io.Int("boot_id", boot_id_bytes);
  io.Check("boot_id", boot_id_bytes <= kMaxBootId, "too long");
  io.Int("worker", worker_bytes);
  io.Check("worker", worker_bytes > 0, "must not be empty");
  io.Int("reports_failure", reports_failure);
  io.Int("cookie", hello.cookie);
  io.Check("cookie", hello.cookie != 0, "must not be 0");
  io.Int("path", hello.path);
  io.Check("path", hello.path != 0, "must not be 0");
  io.Id("target", hello.target);
  io.Id("dialler", hello.dialler);
  io.Int("pid_namespace", hello.host.pid_namespace);
  io.Int("pid", hello.host.pid);
  io.Reserved(4);
  io.Int("start_time", hello.host.start_time);
  io.Sized("boot_id", hello.host.boot_id, boot_id_bytes);
  io.Sized("worker", hello.worker, worker_bytes);
  if constexpr (Io::kReads) hello.reports_failure = reports_failure != 0;
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Welcome> welcome) {
  io.Int("cookie", welcome.cookie);
  io.Check("cookie", welcome.cookie != 0, "must not be 0");
  io.Int("path", welcome.path);
  io.Check("path", welcome.path != 0, "must not be 0");
}

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out) {
  wire::EncodeFixed(head, out.data());
}

absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeadBytes) return Damaged("head of a ucx frame");
  auto head = wire::DecodeFixed<FrameHead>("ucx", frame.data());
  if (head.ok() && head->bytes != frame.size() - kFrameHeadBytes) {
    return Damaged("size of a ucx frame");
  }
  return head;
}

absl::StatusOr<WriteBody> DecodeWrite(uint32_t number, std::span<const std::byte> body) {
  // Checked before the multiplication: `number` is the peer's. The sum of 32-bit lengths cannot
  // overflow 64 bits.
  if (number > body.size() / kWireRunBytes) return Damaged("pieces of a ucx write");
  const size_t split = number * kWireRunBytes;
  uint64_t bytes = 0;
  for (size_t at = 0; at < split; at += kWireRunBytes) {
    bytes += DecodeWireRun(body.subspan(at).first<kWireRunBytes>()).bytes;
  }
  if (bytes != body.size() - split) return Damaged("bytes of a ucx write");
  return WriteBody{.pieces = body.first(split), .bytes = body.subspan(split)};
}

std::string Encode(const Hello& hello) {
  if (hello.host.boot_id.size() <= kMaxBootId) return wire::Encode(hello);
  Hello cut = hello;
  cut.host.boot_id.resize(kMaxBootId);
  return wire::Encode(cut);
}

absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> in) {
  if (in.size() < sizeof(Hello::version)) return Damaged("ucx hello");
  const Hello other{.version = wire::LoadLittle<uint16_t>(in.data())};
  // The rest of another version's hello may have any form.
  if (other.version != kWireVersion) return other;
  return wire::Decode<Hello>("ucx hello", in);
}

std::string Encode(const Address& address) {
  std::string out(kAddressMagic);
  out.append(reinterpret_cast<const char*>(address.incarnation.bytes.data()), 16);
  return out + address.place;
}

absl::StatusOr<Address> DecodeAddress(std::string_view in) {
  const size_t fixed = kAddressMagic.size() + 16;
  const bool sized = in.starts_with(kAddressMagic) && in.size() > fixed + 1 &&
                     in.size() - fixed <= kMaxWorkerBytes + 1;
  if (!sized || (in[fixed] != kByWorker && in[fixed] != kBySocket)) {
    return absl::InvalidArgumentError("the address is not one of this version's ucx backend");
  }
  Address out{.place = std::string(in.substr(fixed))};
  std::memcpy(out.incarnation.bytes.data(), in.data() + kAddressMagic.size(), 16);
  return out;
}

std::string Encode(const Welcome& welcome) { return wire::Encode(welcome); }

absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte> in) {
  return wire::Decode<Welcome>("ucx welcome", in);
}

}  // namespace kvxfer::ucx
