#include "src/cli/common/peer_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/bootstrap.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer::cli {
namespace {

constexpr Duration kFirstRequest = std::chrono::seconds(20);
// A client is silent while its load runs.
constexpr Duration kNextRequest = kLongestRun + std::chrono::minutes(5);

}  // namespace

PeerService::PeerService(std::unique_ptr<Agent> agent, uint64_t max_session_bytes)
    : agent_(std::move(agent)),
      max_session_bytes_(max_session_bytes),
      dispatcher_([this] { Dispatch(); }) {}

PeerService::~PeerService() {
  stopping_.store(true);
  dispatcher_.join();
}

void PeerService::Serve(Channel& channel) {
  Session session;
  {
    const std::lock_guard lock(mutex_);
    session.id = next_session_++;
    sessions_[session.id] = &session;
  }
  for (Duration patience = kFirstRequest;; patience = kNextRequest) {
    const absl::StatusOr<Json> request = channel.Receive(patience);
    if (!request.ok()) break;
    const absl::StatusOr<Json> answer = Handle(session, *request);
    if (!channel.Send(answer.ok() ? *answer : ErrorAnswer(answer.status())).ok()) break;
  }
  // First remove the peer, so that its transfers end and can no longer touch the memory. Only then
  // may another session use the name.
  if (!session.peer.empty()) (void)agent_->RemovePeer(session.peer);
  {
    const std::lock_guard lock(mutex_);
    sessions_.erase(session.id);
  }
  if (!Forget(session).ok()) {
    const std::lock_guard lock(mutex_);
    stranded_.push_back(std::move(session.cache));
  }
}

absl::StatusOr<Json> PeerService::Handle(Session& session, const Json& request) {
  const std::string type = GetString(request, "type");
  if (type == "hello") return Hello(session, request);
  if (session.peer.empty()) return absl::FailedPreconditionError("say hello first");
  if (type == "explain") {
    const absl::StatusOr<Explanation> explanation = agent_->Explain(session.peer);
    if (!explanation.ok()) return explanation.status();
    return Json{{"explanation", ToJson(*explanation)}, {"text", explanation->ToString()}};
  }
  if (type == "prepare") return Prepare(session, request);
  if (type == "report") return Report(session);
  if (type == "drive") return Drive(session, request);
  return Content(session, type, request);
}

absl::StatusOr<Json> PeerService::Hello(Session& session, const Json& request) {
  if (absl::Status status = CheckVersion(request, "the client", "the server"); !status.ok()) {
    return status;
  }
  const absl::StatusOr<std::string> theirs = GetHex(request, "metadata");
  if (!theirs.ok()) return theirs.status();
  const absl::StatusOr<AgentMetadata> metadata = DecodeMetadata(*theirs);
  if (!metadata.ok()) return metadata.status();
  const bool first = session.peer.empty();
  if (absl::Status status = Claim(session, metadata->name); !status.ok()) return status;
  if (const absl::Status status = agent_->AddPeer(*theirs).status(); !status.ok()) {
    const std::lock_guard lock(mutex_);
    if (first) session.peer.clear();
    return status;
  }
  const absl::StatusOr<std::string> ours = agent_->Metadata();
  if (!ours.ok()) return ours.status();
  const std::lock_guard lock(mutex_);
  session.same_clock = GetString(request, "boot_id") == BootId();
  return Json{{"metadata", ToHex(*ours)}, {"version", KVXFER_VERSION}};
}

// Reserves the name before AddPeer sees it: AddPeer replaces the metadata of a peer with the same
// name, and a session keeps its name until it ends.
absl::Status PeerService::Claim(Session& session, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (session.peer == name) return absl::OkStatus();
  if (!session.peer.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this connection belongs to agent ", session.peer, "; open another one for ", name));
  }
  for (const auto& [id, other] : sessions_) {
    if (other->peer == name) {
      return absl::FailedPreconditionError(
          absl::StrCat("another client has the name ", name, "; give agents unique names"));
    }
  }
  session.peer = name;
  return absl::OkStatus();
}

// Waits in the agent, so that this thread drives it and a ping costs no extra wake-up here.
void PeerService::Dispatch() {
  while (!stopping_.load()) {
    const auto notification = agent_->WaitNotification(std::chrono::milliseconds(100));
    if (notification.ok()) {
      OnNotification(*notification);
    } else if (!IsTimedOut(notification.status())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

void PeerService::OnNotification(const Notification& notification) {
  const std::optional<SessionNote> note = SessionNote::Decode(notification.payload);
  if (!note) return;
  const std::lock_guard lock(mutex_);
  const auto it = sessions_.find(note->session);
  // A client may only send notes of its own session.
  if (it == sessions_.end() || it->second->peer != notification.peer) return;
  Session& session = *it->second;
  if (session.answer.empty()) {
    ++session.notifications;
    if (!session.same_clock) return;
    const int64_t after_ns = std::max<int64_t>(MonotonicNanoseconds() - note->posted_ns, 0);
    session.notified.Add(Duration(after_ns));
    if (note->sequence != 0 && session.arrivals.size() < kMaxTimeline) {
      session.arrivals.push_back({note->sequence, after_ns});
    }
    return;
  }
  constexpr uint32_t kFirst = 0;
  const PagedBlocks blocks{.local = session.cache.regions(),
                           .remote = session.answer,
                           .local_ids = {&kFirst, 1},
                           .remote_ids = {&kFirst, 1}};
  // Nothing waits for this transfer: the client sees whether the answer arrives.
  TransferOptions options;
  if (note->by_message) {
    (void)agent_->Notify(session.peer, notification.payload, options);
    return;
  }
  options.notification = notification.payload;
  (void)agent_->Write(session.peer, blocks, options);
}

}  // namespace kvxfer::cli
