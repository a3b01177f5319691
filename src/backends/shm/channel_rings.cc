// Channel: making and mapping the rings, and the messages that go through them.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <new>
#include <string>

#include "src/backends/shm/channel.h"
#include "src/backends/shm/regions.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::shm {
namespace {

constexpr size_t kDialler = 0;  // index of the ring that the connecting side sends through
constexpr size_t kAcceptor = 1;
constexpr size_t kFileBytes = 2 * sizeof(RingMemory);

absl::StatusOr<UniqueFd> MakeFile() {
  UniqueFd file =
      UniqueFd::Open([] { return memfd_create("kvxfer-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!file.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(file.get(), kFileBytes) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "making a memfd of the right size");
  }
  return file;
}

// Whether writing to `bell` can only ring: a write to anything but an eventfd might raise SIGPIPE
// or change a file.
bool RingsWithoutHarm(int bell) {
  const int flags = fcntl(bell, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) return false;
  std::array<char, 64> kind{};
  const std::string link = absl::StrCat("/proc/self/fd/", bell);
  return readlink(link.c_str(), kind.data(), kind.size() - 1) > 0 &&
         std::string_view(kind.data()) == "anon_inode:[eventfd]";
}

}  // namespace

absl::Status Channel::MapRings(int file, size_t sends_through) {
  // MAP_POPULATE: otherwise the first messages fault on each new page.
  void* data =
      mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mapping the rings");
  rings_ = Mapping(data, kFileBytes);
  // The kernel gives zeroed memory, which is a valid initial RingMemory.
  auto* rings = std::launder(static_cast<RingMemory*>(data));
  out_ = RingSender(&rings[sends_through]);
  in_ = RingReceiver(&rings[1 - sends_through]);
  return absl::OkStatus();
}

void Channel::OfferRings(int bell) {
  const absl::StatusOr<UniqueFd> file = MakeFile();
  absl::Status made = file.status();
  if (made.ok()) made = MapRings(file->get(), kDialler);
  if (!made.ok()) {
    Log(LogLevel::kInfo, "shm: messages stay with the socket: {}", ToStd(made.message()));
    return;
  }
  SendFrame(FrameType::kRing, {}, file->get());
  SendFrame(FrameType::kBell, {}, bell);
}

absl::Status Channel::TakeRings(const Frame& frame, int bell) {
  if (has_rings()) return absl::InternalError("shm: the peer offers rings twice");
  // If descriptors or memory are short, there are no rings and the socket is used.
  if (!frame.file.valid()) return absl::OkStatus();
  // The size is the peer's claim: touching a smaller file would raise SIGBUS here.
  if (absl::Status good = CheckFile(frame.file.get(), 0, kFileBytes); !good.ok()) {
    return absl::InternalError(absl::StrCat("shm: the peer's rings: ", good.message()));
  }
  if (MapRings(frame.file.get(), kAcceptor).ok()) SendFrame(FrameType::kBell, {}, bell);
  return absl::OkStatus();
}

absl::Status Channel::TakeBell(Frame& frame) {
  // Without the bell a sleeper could not be woken, so the rings are not used. A bell that comes
  // later only wakes.
  if (!has_rings() || !frame.file.valid()) return absl::OkStatus();
  if (RingsReady()) return absl::InternalError("shm: the peer offers a bell twice");
  if (!RingsWithoutHarm(frame.file.get())) {
    return absl::InternalError("shm: the peer's bell is no eventfd, or could block");
  }
  bell_ = std::move(frame.file);
  return absl::OkStatus();
}

void Channel::PushPart(bool more, std::string_view body) {
  // Nothing may overtake the queue, and a record counts only frames that have been sent.
  if (!queued() && TryPush(more, body)) return;
  parts_.push_back({.more = more, .body = std::string(body)});
  queued_bytes_ += body.size();
}

bool Channel::TryPush(bool more, std::string_view body) {
  if (!out_.Push(frames_sent_, more, body)) return false;
  if (out_.BellDue()) RingBell();
  return true;
}

void Channel::RingBell() const {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the bell has been rung often enough.
  [[maybe_unused]] const ssize_t n = write(bell_.get(), &one, sizeof(one));
}

// A sender whose bell could not be passed, for lack of a descriptor, is woken by an empty frame. If
// anything waits for the socket, that wakes it as well; so a sender that reads nothing gets no
// queue.
void Channel::WakeSender() {
  if (RingsReady()) return RingBell();
  if (!socket_queued()) SendFrame(FrameType::kBell, {});
}

Channel::Got Channel::ReceiveFromRing(Frame& frame) {
  if (!has_rings() || in_damaged_) return Got::kNothing;
  RingRecord record;
  switch (in_.Peek(record)) {
    case RingReceiver::Got::kNothing:
      return Got::kNothing;
    case RingReceiver::Got::kDamaged:
      return Damaged(frame);
    case RingReceiver::Got::kRecord:
      break;
  }
  if (record.after > frames_received_) {
    // The sender had sent them before this record, so they are in the socket already.
    bool empty = false;
    const Got got = ReceiveFromSocket(frame, &empty);
    return empty ? Damaged(frame) : got;
  }
  in_.Pop(record, std::as_writable_bytes(std::span(buffer_.get(), kMaxRecordBytes)));
  if (in_.BellDue()) WakeSender();
  frame.type = FrameType::kMessage;
  frame.more = record.more != 0;
  frame.body = {buffer_.get(), record.bytes};
  return Got::kFrame;
}

// Reported once: from now on only the socket is read, which brings the end.
Channel::Got Channel::Damaged(Frame& frame) {
  in_damaged_ = true;
  frame.type = FrameType::kDamaged;
  frame.body = {};
  return Got::kFrame;
}

bool Channel::Arm() { return !has_rings() || in_damaged_ || in_.Arm(); }

void Channel::Disarm() {
  if (has_rings()) in_.Disarm();
}

}  // namespace kvxfer::shm
