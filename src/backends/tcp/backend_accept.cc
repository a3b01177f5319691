// TcpBackend: incoming streams become endpoints or join one.

#include <algorithm>
#include <utility>

#include "src/backends/tcp/backend.h"
#include "src/core/base/log.h"

namespace kvxfer::tcp {
namespace {

constexpr size_t kMaxHalfOpen = 256;

}  // namespace

void TcpBackend::OnPreamble(net::Fd fd, const Preamble& preamble, const std::string& from) {
  if (preamble.version != kStreamVersion) {
    Log(LogLevel::kDebug, "tcp: {} speaks version {} of the tcp streams, we {}", from,
        preamble.version, kStreamVersion);
    net::Answer(fd, {.code = WelcomeCode::kWrongVersion});
    reactor_->Remove(fd.get());
  } else if (preamble.service == net::Service::kMetadata) {
    OnMetadataPreamble(std::move(fd), from);
  } else if (preamble.service != kService) {
    reactor_->Remove(fd.get());
  } else if (preamble.role == Role::kControl) {
    OnControlPreamble(std::move(fd), preamble, from);
  } else {
    OnDataPreamble(std::move(fd), preamble);
  }
}

void TcpBackend::OnControlPreamble(net::Fd fd, const Preamble& preamble, const std::string& from) {
  if (preamble.target != incarnation_) {
    net::Answer(fd, {.code = WelcomeCode::kWrongIncarnation});
    reactor_->Remove(fd.get());
    return;
  }
  const LinkId id = Incarnation::Random().bytes;
  net::Answer(fd, {.code = WelcomeCode::kJoin, .link = id});
  // Beyond the limit the oldest half-open endpoint goes, so that peers that never join cannot
  // exhaust memory.
  if (half_open_.size() >= kMaxHalfOpen) half_open_.erase(half_open_.begin());
  half_open_.push_back(
      std::make_unique<TcpEndpoint>(this, std::move(fd), from, preamble.rails, id));
  endpoints_.push_back(half_open_.back().get());
  Watch(half_open_.back().get());
}

void TcpBackend::OnDataPreamble(net::Fd fd, const Preamble& preamble) {
  const auto it = std::ranges::find_if(endpoints_, [&](const TcpEndpoint* endpoint) {
    return !endpoint->connecting() && endpoint->id() == preamble.link &&
           endpoint->rails() == preamble.rails;
  });
  // A data stream for an endpoint that is gone, or of another incarnation, gets no answer: its peer
  // sees the close.
  if (it == endpoints_.end() || preamble.target != incarnation_ || !(*it)->Join(preamble, &fd)) {
    reactor_->Remove(fd.get());
    return;
  }
  TcpEndpoint* const endpoint = *it;
  // The first data stream makes the endpoint usable: report it to the agent, which owns it from
  // here on.
  if (!endpoint->joining()) return;
  const auto half =
      std::ranges::find(half_open_, endpoint, [](const auto& each) { return each.get(); });
  sink_.Emit(MakeAccepted(std::move(*half)));
  half_open_.erase(half);
  endpoint->GoUp();
}

void TcpBackend::OnMetadataPreamble(net::Fd fd, const std::string& from) {
  std::shared_ptr<const std::string> metadata;
  WelcomeCode code = WelcomeCode::kNotServed;
  if (metadata_ && !handouts_.MakeSpace(Now())) {
    code = WelcomeCode::kBusy;
  } else if (metadata_) {
    metadata = metadata_();
    code = metadata == nullptr ? WelcomeCode::kClosing : WelcomeCode::kJoin;
  }
  Log(LogLevel::kDebug, "tcp: metadata asked for by {}: verdict {}", from, static_cast<int>(code));
  if (metadata == nullptr) {
    net::Answer(fd, {.code = code});
    reactor_->Remove(fd.get());
    return;
  }
  handouts_.Add(reactor_.get(), std::move(fd), std::move(metadata));
}

}  // namespace kvxfer::tcp
