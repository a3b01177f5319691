// Encoding and decoding of frames, hellos, welcomes and addresses.

#include "src/backends/ucx/frames.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "src/transport/bytes.h"
#include "src/transport/hello.h"

namespace kvxfer::ucx {
namespace {

using net::Damaged;
using net::Get16;
using net::Get32;
using net::Get64;
using net::Get8;
using net::Put16;
using net::Put32;
using net::Put64;

constexpr uint8_t kFrameMagic = 0x55;
constexpr std::string_view kAddressMagic = "kvxfer-ucx-2;";
constexpr size_t kMaxBootId = 64;
// The part of a hello before boot_id and the worker's address. Bytes 68 to 71 are unused.
constexpr size_t kHelloFixed = 80;
constexpr size_t kWelcomeBytes = 16;
static_assert(kMaxWorkerBytes + kHelloFixed + kMaxBootId <= kMaxBodyBytes);

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Incarnation GetIncarnation(const std::byte* at) {
  Incarnation out;
  std::memcpy(out.bytes.data(), at, out.bytes.size());
  return out;
}

}  // namespace

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out) {
  out[0] = std::byte{kFrameMagic};
  out[1] = static_cast<std::byte>(head.kind);
  Put16(&out[2], head.flags);
  Put32(&out[4], head.bytes);
  Put64(&out[8], head.cookie);
  Put64(&out[16], head.order);
  Put64(&out[24], head.transfer);
  Put32(&out[32], head.number);
  // Immediates keep the byte order in which NICs carry them.
  const uint32_t big = htobe32(head.immediate);
  std::memcpy(&out[36], &big, sizeof(big));
}

absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeadBytes || Get8(frame.data()) != kFrameMagic) {
    return Damaged("head of a ucx frame");
  }
  const uint8_t kind = Get8(&frame[1]);
  if (kind < 1 || kind > 10) return Damaged("kind of a ucx frame");
  uint32_t big;
  std::memcpy(&big, &frame[36], sizeof(big));
  const FrameHead head{.kind = static_cast<FrameKind>(kind),
                       .flags = Get16(&frame[2]),
                       .bytes = Get32(&frame[4]),
                       .cookie = Get64(&frame[8]),
                       .order = Get64(&frame[16]),
                       .transfer = Get64(&frame[24]),
                       .number = Get32(&frame[32]),
                       .immediate = be32toh(big)};
  if (head.bytes != frame.size() - kFrameHeadBytes || head.bytes > kMaxBodyBytes) {
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
  for (size_t at = 0; at < split; at += kWireRunBytes) bytes += Get32(&body[at + 8]);
  if (bytes != body.size() - split) return Damaged("bytes of a ucx write");
  return WriteBody{.pieces = body.first(split), .bytes = body.subspan(split)};
}

std::string Encode(const Hello& hello) {
  std::string out(kHelloFixed, '\0');
  const auto bytes = std::as_writable_bytes(std::span(out));
  const std::string boot_id = hello.host.boot_id.substr(0, kMaxBootId);
  Put16(bytes.data(), hello.version);
  Put16(&bytes[2], static_cast<uint16_t>(boot_id.size()));
  Put16(&bytes[4], static_cast<uint16_t>(hello.worker.size()));
  Put16(&bytes[6], hello.reports_failure ? 1 : 0);
  Put64(&bytes[8], hello.cookie);
  Put64(&bytes[16], hello.path);
  std::memcpy(&bytes[24], hello.target.bytes.data(), 16);
  std::memcpy(&bytes[40], hello.dialler.bytes.data(), 16);
  Put64(&bytes[56], hello.host.pid_namespace);
  Put32(&bytes[64], hello.host.pid);
  Put64(&bytes[72], hello.host.start_time);
  return out + boot_id + hello.worker;
}

absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> in) {
  if (in.size() < 2) return Damaged("ucx hello");
  Hello hello{.version = Get16(in.data())};
  // The rest of another version's hello may have any form.
  if (hello.version != kWireVersion) return hello;
  if (in.size() < kHelloFixed) return Damaged("ucx hello");
  const size_t boot_id = Get16(&in[2]);
  const size_t worker = Get16(&in[4]);
  if (boot_id > kMaxBootId || worker == 0 || in.size() != kHelloFixed + boot_id + worker) {
    return Damaged("size of a ucx hello");
  }
  hello.reports_failure = Get16(&in[6]) != 0;
  hello.cookie = Get64(&in[8]);
  hello.path = Get64(&in[16]);
  if (hello.cookie == 0 || hello.path == 0) return Damaged("ids of a ucx hello");
  hello.target = GetIncarnation(&in[24]);
  hello.dialler = GetIncarnation(&in[40]);
  hello.host.pid_namespace = Get64(&in[56]);
  hello.host.pid = Get32(&in[64]);
  hello.host.start_time = Get64(&in[72]);
  hello.host.boot_id = TextOf(in.subspan(kHelloFixed, boot_id));
  hello.worker = TextOf(in.subspan(kHelloFixed + boot_id));
  return hello;
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
  return Address{.incarnation = GetIncarnation(BytesOf(in).data() + kAddressMagic.size()),
                 .place = std::string(in.substr(fixed))};
}

std::string Encode(const Welcome& welcome) {
  std::string out(kWelcomeBytes, '\0');
  const auto bytes = std::as_writable_bytes(std::span(out));
  Put64(bytes.data(), welcome.cookie);
  Put64(&bytes[8], welcome.path);
  return out;
}

absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte> in) {
  if (in.size() != kWelcomeBytes) return Damaged("ucx welcome");
  const Welcome welcome{.cookie = Get64(in.data()), .path = Get64(&in[8])};
  if (welcome.cookie == 0 || welcome.path == 0) return Damaged("ids of a ucx welcome");
  return welcome;
}

}  // namespace kvxfer::ucx
