#include "src/backends/cuda_ipc/accepted.h"

#include <unistd.h>

#include <utility>

#include "src/backends/cuda_ipc/backend.h"
#include "src/backends/cuda_ipc/regions.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::cuda_ipc {
namespace {

// How many packets one turn sends. Each may export memory, which takes about 10 us.
constexpr int kAnswersPerTurn = 32;

}  // namespace

CudaIpcAcceptedEndpoint::CudaIpcAcceptedEndpoint(CudaIpcBackend* backend, net::Fd control,
                                                 std::string from)
    : CudaIpcEndpoint(backend, std::move(control), std::move(from)) {
  FillRandom(word_);
  max_message_ = kMaxFirstMessageBytes;
}

void CudaIpcAcceptedEndpoint::SayHello() { Tell(Encode(Hello{.word = word_})); }

EndpointInfo CudaIpcAcceptedEndpoint::Describe() const {
  if (process_ == nullptr) return OneRail(absl::StrCat(Name(), ", which has not said who it is"));
  return OneRail(absl::StrCat("process ", process_->pid(),
                              ", whose GPUs copy into and out of this one's", ControlPath()));
}

bool CudaIpcAcceptedEndpoint::Join(std::unique_ptr<Lifeline>& lifeline, const DialPacket& dial) {
  if (!up() || lifeline_ != nullptr || dial.word != word_) return false;
  lifeline_ = std::move(lifeline);
  const uint32_t pid = lifeline_->peer().pid;
  absl::Status refused;
  if (dial.version != kWireVersion) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("this side speaks version ", kWireVersion, " of cuda_ipc, not ", dial.version,
                     "; use the same kvxfer in both processes"));
  } else if (pid == 0) {
    refused = absl::FailedPreconditionError(
        "the other process is in a pid namespace that is not seen from here, so that its end could "
        "not be told (run both containers with one, e.g. --pid=host)");
  } else {
    refused = WatchProcess(pid, dial.start_time);
  }
  if (!refused.ok()) {
    Shutdown(refused);
    return true;
  }
  same_process_ = pid == static_cast<uint32_t>(::getpid());
  Tell(Encode(Joined{}));
  return true;
}

absl::Status CudaIpcAcceptedEndpoint::WatchProcess(uint32_t pid, uint64_t start_time) {
  auto process = PeerProcess::Open(backend_->host(), pid, start_time);
  if (!process.ok()) return process.status();
  auto watch = ProcessWatch::Begin(&reactor(), *std::move(process));
  if (!watch.ok()) return watch.status();
  process_ = *std::move(watch);
  return absl::OkStatus();
}

absl::Status CudaIpcAcceptedEndpoint::OnFrame(std::span<const std::byte> frame) {
  const absl::StatusOr<Frame> decoded = Decode(frame);
  return decoded.ok() ? OnRingsFrame(*decoded) : decoded.status();
}

Posted CudaIpcAcceptedEndpoint::Post(const Op& op) {
  if (!up()) return false;
  Emit(MakeRefused(this, op, "cuda_ipc"));
  return true;
}

void CudaIpcAcceptedEndpoint::Fence(FenceScope scope) {
  // The initiator was fenced first and has waited for what its GPUs had begun, so nothing is under
  // way.
  if (up()) Emit(MakeFenced(this, scope));
}

absl::StatusOr<std::unique_ptr<RemoteKey>> CudaIpcAcceptedEndpoint::Import(
    const RemoteRegion& /*region*/, std::string_view /*key*/) {
  return absl::FailedPreconditionError(
      "cuda_ipc: only the side that connected may use regions of the other");
}

absl::Status CudaIpcAcceptedEndpoint::OnPacket(Lifeline::Packet& packet) {
  if (last_word_) return absl::InvalidArgumentError("the peer sent a packet after its last word");
  if (packet.type == PacketType::kQuiet) {
    last_word_ = quiet_said_ = true;
    FinishDown();
    Expect(absl::UnavailableError("the peer has ended the connection"));
    return absl::OkStatus();
  }
  const auto ask = wire::TryDecode<AskPacket>(packet.body);
  if (packet.type != PacketType::kAsk || !ask) {
    return absl::InvalidArgumentError("the peer sent a cuda_ipc packet that has no place here");
  }
  if (!up()) return absl::OkStatus();
  if (asks_.size() == kMaxAsks) {
    return absl::ResourceExhaustedError("the peer asks for more regions than it waits for");
  }
  asks_.push_back({.packet = *ask});
  return absl::OkStatus();
}

bool CudaIpcAcceptedEndpoint::HasWorkAside() const {
  if (CudaIpcEndpoint::HasWorkAside()) return true;
  if (process_ != nullptr && process_->exited() && !quiet_said_) return true;
  return serves() && lifeline_ != nullptr && !lifeline_->sending();
}

// Nothing is sent before the endpoint is authorised. Answers are made only as fast as the socket
// takes them, so exported handles are not kept here.
void CudaIpcAcceptedEndpoint::Serve() {
  for (int i = 0; i < kAnswersPerTurn && serves() && !lifeline_->sending(); ++i) {
    if (!Answer(asks_.front())) continue;
    asks_.pop_front();
  }
}

bool CudaIpcAcceptedEndpoint::Answer(Ask& ask) {
  const uint64_t region = ask.packet.region;
  const CudaIpcRegistration* const registration = backend_->FindRegion(region);
  if (registration == nullptr || registration->rkey() != ask.packet.rkey) {
    // It may also have been closed between two parts.
    Refuse(region, absl::FailedPreconditionError(
                       "the region was deregistered there, or the metadata is old; take it again"));
    return true;
  }
  if (!std::exchange(ask.begun, true)) {
    // From here on the peer may have memory open, so silence no longer proves anything.
    granted_ = true;
    told_.insert(region);
    lifeline_->Send(PacketType::kRegion, wire::Encode(registration->Describe()));
    return false;
    // The region's description goes first; each call after it sends one part.
  }
  net::Fd file;
  absl::StatusOr<PartPacket> part = registration->Export(ask.next_part, same_process_, file);
  if (!part.ok()) {
    told_.erase(region);
    Refuse(region, part.status());
    return true;
  }
  lifeline_->Send(PacketType::kPart, wire::Encode(*part), std::move(file));
  return ++ask.next_part == registration->parts();
}

void CudaIpcAcceptedEndpoint::Refuse(uint64_t region, const absl::Status& why) {
  lifeline_->Send(PacketType::kRefused,
                  wire::Encode(RefusedPacket{.region = region,
                                             .code = static_cast<uint32_t>(why.code()),
                                             .why = ForPeer(ToStd(why.message()))}));
}

void CudaIpcAcceptedEndpoint::Forget(uint64_t region) {
  if (!up() || lifeline_ == nullptr || told_.erase(region) == 0) return;
  lifeline_->Send(PacketType::kForget, wire::Encode(ForgetPacket{.region = region}));
}

void CudaIpcAcceptedEndpoint::Watch() {
  if (process_ == nullptr || !process_->exited() || quiet_said_) return;
  quiet_said_ = true;
  FinishDown();
  Expect(absl::UnavailableError(absl::StrCat("process ", process_->pid(), " has ended")));
}

void CudaIpcAcceptedEndpoint::OnDetached() {
  lifeline_.reset();
  process_.reset();
  backend_ = nullptr;
}

}  // namespace kvxfer::cuda_ipc
