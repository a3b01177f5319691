#include "src/cli/peer_service.h"

#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/agent_setup.h"
#include "src/cli/scatter.h"
#include "src/cli/stats.h"
#include "src/cli/units.h"
#include "src/core/metadata.h"

namespace kvxfer::cli {
namespace {

constexpr Duration kFirstRequest = std::chrono::seconds(5);
constexpr Duration kNextRequest = std::chrono::minutes(10);
constexpr size_t kMaxNotes = 1u << 16;  // kept for one report

struct ContentRequest {
  uint64_t block_bytes = 0;
  uint64_t seed = 0;
  std::vector<uint32_t> ids;
};

// Everything in a request comes from outside: bounds are checked against what was prepared, and
// the ids with it against `max_bytes`.
absl::StatusOr<ContentRequest> ParseContent(const Json& request, uint64_t bytes,
                                            uint64_t max_bytes) {
  const absl::StatusOr<uint64_t> block_bytes = GetUint(request, "block_bytes");
  const absl::StatusOr<uint64_t> count = GetUint(request, "count");
  const absl::StatusOr<uint64_t> seed = GetUint(request, "seed");
  for (const auto* field : {&block_bytes, &count, &seed}) {
    if (!field->ok()) return field->status();
  }
  if (*block_bytes == 0 || *count > UINT32_MAX || *count > bytes / *block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(*count, " blocks of ", *block_bytes,
                                                   " bytes do not fit the ", bytes, " prepared"));
  }
  const uint64_t id_bytes = *count * sizeof(uint32_t);
  if (bytes > max_bytes || id_bytes > max_bytes - bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        FormatBytes(bytes), " and the ids of ", *count, " blocks, ", FormatBytes(id_bytes),
        ", are more than the ", FormatBytes(max_bytes),
        " of a session; use larger blocks or less memory, or let the server give more with "
        "--max-session-bytes"));
  }
  return ContentRequest{.block_bytes = *block_bytes,
                        .seed = *seed,
                        .ids = Permutation(static_cast<uint32_t>(*count), TargetSeed(*seed))};
}

}  // namespace

std::string SessionNote::Encode() const {
  std::string payload;
  for (uint64_t value : {session, sequence}) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      payload += static_cast<char>(static_cast<uint8_t>(value >> shift));
    }
  }
  return payload;
}

std::optional<SessionNote> SessionNote::Decode(std::string_view payload) {
  if (payload.size() != 16) return std::nullopt;
  const auto read = [payload](size_t offset) {
    uint64_t value = 0;
    for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<uint8_t>(payload[offset + i]);
    return value;
  };
  return SessionNote{.session = read(0), .sequence = read(8)};
}

int64_t MonotonicNanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

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
  // First the peer: its transfers end, and nothing of it can touch the memory any more. Only then
  // may another session have the name.
  if (!session.peer.empty()) (void)agent_->RemovePeer(session.peer);
  {
    const std::lock_guard lock(mutex_);
    sessions_.erase(session.id);
  }
  if (!Forget(session).ok()) {
    const std::lock_guard lock(mutex_);
    stranded_.push_back(std::move(session.memory));
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
  return Content(session, type, request);
}

absl::StatusOr<Json> PeerService::Hello(Session& session, const Json& request) {
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
  return Json{{"metadata", ToHex(*ours)}};
}

// Before the agent hears of it: a peer's metadata replaces that of the same name, and every name
// is kept until the session ends.
absl::Status PeerService::Claim(Session& session, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (session.peer == name) return absl::OkStatus();
  if (!session.peer.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("this connection is of agent ", session.peer,
                                                      "; make another one for ", name));
  }
  for (const auto& [id, other] : sessions_) {
    if (other->peer == name) {
      return absl::FailedPreconditionError(
          absl::StrCat("another client is called ", name, "; give agents unique names"));
    }
  }
  session.peer = name;
  return absl::OkStatus();
}

absl::StatusOr<Json> PeerService::Prepare(Session& session, const Json& request) {
  const absl::StatusOr<uint64_t> bytes = GetUint(request, "bytes");
  const absl::StatusOr<MemorySource> source = ParseMemorySource(GetString(request, "memory"));
  if (!bytes.ok()) return bytes.status();
  if (!source.ok()) return source.status();
  if (*bytes == 0 || *bytes > max_session_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("a session may have from 1 byte to ",
                                                   FormatBytes(max_session_bytes_), ", not ",
                                                   FormatBytes(*bytes)));
  }
  std::vector<PagedRegion> answer;
  if (request.contains("answer")) {
    absl::StatusOr<std::vector<PagedRegion>> regions = GetRegions(request, "answer");
    if (!regions.ok()) return regions.status();
    answer = std::move(*regions);
  }
  if (absl::Status status = Forget(session); !status.ok()) return status;
  absl::StatusOr<HostMemory> memory = HostMemory::Allocate(*source, *bytes);
  if (!memory.ok()) return memory.status();
  const absl::StatusOr<RegionId> region =
      agent_->RegisterMemory(memory->span(), Access::kReadWrite);
  if (!region.ok()) return region.status();
  const std::lock_guard lock(mutex_);
  session.memory = std::move(*memory);
  session.region = *region;
  session.answer = std::move(answer);
  return Json{{"session", session.id},
              {"base", reinterpret_cast<uint64_t>(session.memory.bytes().data())}};
}

absl::StatusOr<Json> PeerService::Content(Session& session, const std::string& type,
                                          const Json& request) {
  const std::span<std::byte> bytes = session.memory.bytes();
  // Within this process it is the agent that orders these writes before whatever lands next: the
  // answer goes over a socket, and that orders nothing between threads.
  const auto handed_over = [this]() -> absl::StatusOr<Json> {
    if (auto metadata = agent_->Metadata(); !metadata.ok()) return metadata.status();
    return Json::object();
  };
  if (type == "clear") {
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
    return handed_over();
  }
  if (type != "fill" && type != "check") {
    return absl::UnimplementedError(
        absl::StrCat("unknown request '", type, "'; are both sides the same version of kvxfer?"));
  }
  const absl::StatusOr<ContentRequest> content =
      ParseContent(request, bytes.size(), max_session_bytes_);
  if (!content.ok()) return content.status();
  if (type == "fill") {
    FillBlocks(bytes, content->block_bytes, content->ids, content->seed);
    return handed_over();
  }
  absl::Status check = CheckBlocks(bytes, content->block_bytes, content->ids, content->seed);
  if (!check.ok()) return check;
  return Json::object();
}

Json PeerService::Report(Session& session) {
  const std::lock_guard lock(mutex_);
  return {{"notified_ns", std::exchange(session.notified_ns, {})},
          {"boot_id", BootId()},
          {"cpu_seconds", CpuSeconds()}};
}

// Gives the session's memory back; it stays when something can still touch it.
absl::Status PeerService::Forget(Session& session) {
  if (session.region == RegionId::kNone) return absl::OkStatus();
  if (absl::Status status = agent_->DeregisterMemory(session.region); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  session.region = RegionId::kNone;
  session.memory = HostMemory();
  return absl::OkStatus();
}

// Waits in the agent, so that this thread also drives it: a ping costs no extra wake-up here.
void PeerService::Dispatch() {
  while (!stopping_.load()) {
    const absl::StatusOr<Notification> notification =
        agent_->WaitNotification(std::chrono::milliseconds(100));
    if (notification.ok()) {
      OnNotification(*notification);
    } else if (!absl::IsDeadlineExceeded(notification.status())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

void PeerService::OnNotification(const Notification& notification) {
  const std::optional<SessionNote> note = SessionNote::Decode(notification.payload);
  if (!note) return;
  const std::lock_guard lock(mutex_);
  const auto it = sessions_.find(note->session);
  // A client may speak for its own session only.
  if (it == sessions_.end() || it->second->peer != notification.peer) return;
  Session& session = *it->second;
  if (session.answer.empty()) {
    if (session.notified_ns.size() < kMaxNotes) {
      session.notified_ns.push_back(MonotonicNanoseconds());
    }
    return;
  }
  const std::span<std::byte> bytes = session.memory.bytes();
  const PagedRegion local{.base = reinterpret_cast<uint64_t>(bytes.data()),
                          .block_bytes = bytes.size(),
                          .stride = bytes.size(),
                          .count = 1};
  constexpr uint32_t kFirst = 0;
  const PagedBlocks blocks{.local = {&local, 1},
                           .remote = {session.answer.data(), 1},
                           .local_ids = {&kFirst, 1},
                           .remote_ids = {&kFirst, 1}};
  TransferOptions options;
  options.notification = notification.payload;
  // Not waited for: the client sees whether the answer comes.
  (void)agent_->Write(session.peer, blocks, options);
}

}  // namespace kvxfer::cli
