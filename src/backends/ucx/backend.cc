// UcxBackend: construction and destruction, the agent's calls, paths and their endpoints.

#include "src/backends/ucx/backend.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/ucx/factory.h"
#include "src/backends/ucx/worker.h"
#include "src/core/base/clock.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::ucx {
namespace {

// How long destruction waits for the last frames to leave, and for UCX to answer peers that are
// connecting.
constexpr Duration kFlushTimeout = std::chrono::milliseconds(20);
// How long destruction waits for endpoints to close. Only shared memory makes a close wait for a
// peer.
constexpr Duration kCloseTimeout = std::chrono::milliseconds(100);
// How many ended endpoints are remembered.
constexpr size_t kMaxEnded = 1024;

// UCX refers to these paths for as long as the process lives, so they are never destroyed.
void KeepForGood(std::vector<std::unique_ptr<Path>> paths) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Path>>;
  const std::lock_guard lock(mutex);
  std::ranges::move(paths, std::back_inserter(*kept));
}

}  // namespace

UcxBackend::UcxBackend(const BackendContext& context)
    : incarnation_(context.incarnation),
      host_(context.host),
      connect_timeout_(context.options.connect_timeout) {
  info_.name = "ucx";
  info_.capabilities = {.arrival = Arrival::kImmediate,
                        .memory_kinds = BitOf(MemoryKind::kHost),
                        .rail_keeps_order = true,
                        .needs_remote_cpu = true,
                        .max_op_bytes = kMaxOpBytes,
                        .max_op_pieces = kMaxOpPieces,
                        .max_message_bytes = kMaxMessageBytes};
}

absl::StatusOr<std::unique_ptr<Backend>> UcxBackend::Create(const BackendContext& context) {
  const auto options = ReadOptions<UcxOptions>("ucx", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<UcxBackend> backend(new UcxBackend(context));
  auto reactor = net::Reactor::Create();
  if (!reactor.ok()) return reactor.status();
  backend->reactor_ = *std::move(reactor);
  backend->info_.wait_fd = backend->reactor_->fd();
  auto worker = Worker::Create(context.options, *options, backend.get());
  if (!worker.ok()) return worker.status();
  backend->worker_ = *std::move(worker);
  // Peers send this address in a hello, which has a bound.
  const size_t bytes = backend->worker_->address().size();
  if (bytes > kMaxWorkerBytes) {
    return absl::UnavailableError(absl::StrCat(
        "ucx: the address of the worker has ", bytes, " bytes, more than ", kMaxWorkerBytes,
        "; name fewer devices (`ucx.net_devices`) or transports (`ucx.tls`)"));
  }
  if (const std::string& at = options->listen; !at.empty()) {
    auto listener = Listener::Open(backend->worker_->get(), at);
    if (!listener.ok()) return Annotate(listener.status(), "ucx");
    backend->listener_ = *std::move(listener);
  }
  // Level-triggered: UCX empties it, and what UCX leaves has to be reported again.
  absl::Status added = backend->reactor_->Add(backend->worker_->fd(), nullptr, EPOLLIN);
  if (!added.ok()) return added;
  backend->info_.address = backend->MakeAddress();
  Log(LogLevel::kInfo, "ucx: the worker runs: {}", backend->worker_->description());
  return backend;
}

UcxBackend::~UcxBackend() {
  if (worker_ == nullptr) return;
  // Endpoints that were accepted and not handed out yet use this object when they are destroyed, so
  // they go first.
  events_.Clear();
  for (auto& [cookie, endpoint] : endpoints_) endpoint->Detach();
  // Rejects the connections that wait.
  listener_.reset();
  // UCX owes peers an answer only where it wires devices up by worker address.
  const bool owes = std::ranges::any_of(
      paths_, [](const auto& entry) { return entry.second->place().front() == kByWorker; });
  worker_->StartFlush();
  const auto flushed = [this] { return worker_->flushed(); };
  // UCX answers connecting peers during the flush; its end shows that the answers have left.
  const bool answered = worker_->ProgressUntil(flushed, kFlushTimeout) || !owes;
  for (auto& [place, path] : paths_) closing_.push_back(std::move(path));
  paths_.clear();
  // A flush that can continue by itself forbids a forced close, see Path::Close. A flush that waits
  // for a peer allows it.
  const bool flushing = !worker_->flushed() && !worker_->Settle(kFlushTimeout);
  for (auto& path : closing_) path->Close(flushing);
  const auto closed = [](const auto& path) { return path->closed(); };
  const bool at_rest = worker_->ProgressUntil(
      [&] { return std::ranges::all_of(closing_, closed) && flushed(); }, kCloseTimeout);
  // All requests are complete, so UCX refers to nothing here and the worker can be destroyed.
  if (answered && at_rest) {
    closing_.clear();
    return;
  }
  // UCX would abort the process, see Worker::LeaveBehind. The paths that UCX still refers to have
  // to live on with the worker.
  worker_->LeaveBehind();
  std::erase_if(closing_, closed);
  KeepForGood(std::move(closing_));
}

std::string UcxBackend::MakeAddress() const {
  return Encode(ucx::Address{.incarnation = incarnation_,
                             .place = listener_ == nullptr ? kByWorker + worker_->address()
                                                           : kBySocket + listener_->address()});
}

// UCX finds out only while it connects which of its transports reach a peer, so this checks no more
// than the address.
absl::Status UcxBackend::Reachable(std::string_view address, const HostIdentity&) const {
  return DecodeAddress(address).status();
}

absl::StatusOr<std::unique_ptr<Endpoint>> UcxBackend::Connect(std::string_view address,
                                                              const HostIdentity& host) {
  auto peer = DecodeAddress(address);
  if (!peer.ok()) return peer.status();
  auto path = PathTo(peer->place, std::nullopt);
  if (!path.ok()) return Annotate(path.status(), "ucx");
  // A path without space has a peer that takes nothing: further hellos would only pile up.
  if (!(*path)->space()) return absl::UnavailableError("ucx: the peer takes nothing");
  (*path)->WatchProcess(host, host_);
  auto endpoint = std::make_unique<UcxEndpoint>(this, *path, *peer);
  endpoints_.emplace(endpoint->cookie(), endpoint.get());
  dialling_.push_back(endpoint.get());
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Registration>> UcxBackend::Register(const LocalRegion& region) {
  return regions_.Register(region, "ucx");
}

// One path per peer: UCX would pair two paths between the same workers in the order of their
// creation, and the end of one could end the other. So a hello never replaces a path that works,
// whoever says hello: it is answered over the path that leads to the worker which it names.
absl::StatusOr<Path*> UcxBackend::PathTo(const std::string& place,
                                         std::optional<bool> reports_failure) {
  const auto failed = paths_.find(place);
  if (failed != paths_.end() && failed->second->failed()) DropPath(failed->second.get());
  // DropPath may have opened it again.
  const auto it = paths_.find(place);
  if (it != paths_.end()) return it->second.get();
  auto path = Path::Open(parts(), place, reports_failure);
  if (!path.ok()) return path.status();
  return paths_.emplace(place, *std::move(path)).first->second.get();
}

// Ends the path's endpoints. The path itself stays in closing_ until UCX has called back for its
// frames.
void UcxBackend::DropPath(Path* path) {
  const absl::Status why = path->failed() ? path->status() : absl::CancelledError("closed");
  // A peer that has lost its end first says hello by a new path, and was answered over this one. It
  // is answered once more, over a path that is opened below.
  const auto again = [path](const UcxEndpoint* endpoint) {
    return path->place().front() == kByWorker && path->peer_id() != 0 &&
           path->peer_id() != endpoint->peer_path() && endpoint->only_welcomed();
  };
  std::vector<UcxEndpoint*> to_answer;
  std::ranges::copy_if(path->endpoints, std::back_inserter(to_answer), again);
  // A copy: OnPathDown removes each endpoint from path->endpoints.
  const std::vector<UcxEndpoint*> endpoints = path->endpoints;
  for (UcxEndpoint* endpoint : endpoints) {
    if (!again(endpoint)) endpoint->OnPathDown(why);
  }
  path->Close();
  const auto it = paths_.find(path->place());
  closing_.push_back(std::move(it->second));
  paths_.erase(it);
  for (UcxEndpoint* endpoint : to_answer) {
    const auto next = PathTo(path->place(), path->reports_failure());
    if (next.ok()) {
      endpoint->WelcomeAgain(*next);
    } else {
      endpoint->OnPathDown(next.status());
    }
  }
}

// The peer uses one path at a time, so its links of an earlier one are over at its side. Until it
// has proved that it is at the other end of the path, nothing ends: anybody may name its worker.
void UcxBackend::Authorized(UcxEndpoint* endpoint) {
  std::erase(unproved_, endpoint);
  Path* const path = endpoint->path();
  path->WatchProcess(endpoint->caller(), host_);
  path->set_peer_id(endpoint->peer_path());
  const auto earlier = [endpoint](const UcxEndpoint* other) {
    return other->peer_path() != 0 && other->peer_path() != endpoint->peer_path();
  };
  std::vector<UcxEndpoint*> over;
  std::copy_if(path->endpoints.begin(), std::ranges::find(path->endpoints, endpoint),
               std::back_inserter(over), earlier);
  for (UcxEndpoint* old : over) {
    old->OnPathDown(absl::UnavailableError("the peer connected anew"));
  }
}

void UcxBackend::Activate(UcxEndpoint* endpoint) {
  if (std::ranges::find(active_, endpoint) == active_.end()) active_.push_back(endpoint);
}

void UcxBackend::Forget(UcxEndpoint* endpoint, bool told) {
  endpoints_.erase(endpoint->cookie());
  std::erase(active_, endpoint);
  std::erase(dialling_, endpoint);
  std::erase(unproved_, endpoint);
  if (endpoint->accepted()) --accepted_;
  if (told) return;
  ended_[endpoint->cookie()] = {.place = endpoint->path()->place(),
                                .peer_cookie = endpoint->peer_cookie()};
  ended_order_.push_back(endpoint->cookie());
  if (ended_order_.size() <= kMaxEnded) return;
  ended_.erase(ended_order_.front());
  ended_order_.pop_front();
}

void UcxBackend::Purge(UcxEndpoint* endpoint) { events_.Purge(endpoint); }

}  // namespace kvxfer::ucx

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeUcxBackend(const BackendContext& context) {
  return ucx::UcxBackend::Create(context);
}

std::string UcxLibraryVersion() { return ucx::LibraryVersion(); }

}  // namespace kvxfer
