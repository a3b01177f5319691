// The target's half of a domain: what has arrived waits, is taken in an order that nobody can
// foresee, and lands in pieces; then its immediate is told, then the initiator answered.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "tests/support/fake_fabric/domain.h"

namespace fake_fabric {
namespace {

constexpr size_t kNothing = SIZE_MAX;
constexpr int kTurns = 32;
constexpr uint64_t kLookAgain = 50;  // µs

}  // namespace

void Domain::AddEndpoint(Endpoint* endpoint) {
  while (next_qpn_ == 0 || endpoints_.contains(next_qpn_)) ++next_qpn_;
  endpoint->address = {
      .node = wire_.node(), .qpn = next_qpn_++, .qkey = static_cast<uint32_t>(TrulyRandom())};
  endpoints_[endpoint->address.qpn] = endpoint;
}

void Domain::RemoveEndpoint(const Endpoint* endpoint) {
  if (endpoint->enabled) endpoints_.erase(endpoint->address.qpn);
  for (const auto& [key, region] : regions_) {
    if (region->endpoint != endpoint) continue;
    region->endpoint = nullptr;
    region->enabled = false;
  }
}

void Domain::ReceiveAll() {
  alignas(8) std::byte datagram[kMaxDatagram];
  while (const size_t bytes = wire_.Receive(datagram, sizeof(datagram))) {
    Packet packet;
    std::memcpy(&packet, datagram, sizeof(packet));
    const std::byte* at = datagram + sizeof(packet);
    const std::byte* const end = datagram + bytes;
    if (packet == Packet::kRequests) {
      for (; at < end; at += sizeof(Request)) {
        Request request;
        std::memcpy(&request, at, sizeof(request));
        TakeRequest(request);
      }
    } else if (packet == Packet::kReplies) {
      for (; at < end; at += sizeof(Reply)) {
        Reply reply;
        std::memcpy(&reply, at, sizeof(reply));
        answers_.push_back(reply);
        const auto op = ops_.find(reply.op);
        if (op != ops_.end() && op->second->endpoint != nullptr) {
          op->second->endpoint->transmit->Signal();
        }
      }
    }
  }
}

void Domain::TakeRequest(const Request& request) {
  Inbound inbound;
  inbound.request = request;
  inbound.due_us = request.hold_us == 0 ? 0 : NowMicroseconds() + request.hold_us;
  inbound_.push_back(std::move(inbound));
}

bool Domain::Ordered(const Request& request) const {
  return config_.order == Order::kAll ||
         (config_.order == Order::kMessages && request.kind == Kind::kSend);
}

// Of those that may go on now, one of the first `window`; kNothing: none may.
size_t Domain::Choose(uint64_t now) {
  std::vector<size_t> candidates;
  std::set<std::pair<uint64_t, uint16_t>> taken;  // sources, of which only the first may
  for (size_t i = 0; i < inbound_.size() && candidates.size() < config_.window; ++i) {
    const Request& request = inbound_[i].request;
    if (Ordered(request) && !taken.emplace(request.from.node, request.from.qpn).second) continue;
    if (inbound_[i].due_us > now) continue;
    if (request.kind == Kind::kSend) {
      const auto endpoint = endpoints_.find(request.to.qpn);
      if (endpoint != endpoints_.end() && endpoint->second->address == request.to &&
          endpoint->second->receives.empty()) {
        continue;
      }
    }
    candidates.push_back(i);
  }
  return candidates.empty() ? kNothing : candidates[Below(candidates.size())];
}

// Whether there is more that may go on now.
bool Domain::LandSome() {
  for (int i = 0; i < kTurns; ++i) {
    const size_t chosen = Choose(NowMicroseconds());
    if (chosen == kNothing) return false;
    if (LandOne(&inbound_[chosen]) == Turn::kOver) {
      inbound_.erase(inbound_.begin() + static_cast<ptrdiff_t>(chosen));
    }
  }
  return true;
}

uint64_t Domain::NextDue() const {
  const uint64_t now = NowMicroseconds();
  uint64_t wait = 1'000'000;
  for (const Inbound& inbound : inbound_) {
    if (inbound.due_us == 0) continue;
    // It may have come due since Choose looked; or what it waits for is not time.
    wait = std::min(wait, inbound.due_us > now ? inbound.due_us - now : kLookAgain);
  }
  return wait;
}

void Domain::Tell(const Inbound& inbound, int error) {
  replies_.push_back(
      {.node = inbound.request.from.node, .reply = {.op = inbound.request.op, .error = error}});
}

Domain::Turn Domain::LandOne(Inbound* inbound) {
  const Request& request = inbound->request;
  const auto found = endpoints_.find(request.to.qpn);
  if (found == endpoints_.end() || found->second->address != request.to) {
    if (!inbound->answered) Tell(*inbound, FI_EHOSTUNREACH);
    return Turn::kOver;
  }
  Endpoint* const endpoint = found->second;
  if (request.kind == Kind::kSend) return LandMessage(inbound, endpoint);
  if (!inbound->checked) {
    for (size_t i = 0; i < request.remote_count; ++i) {
      if (request.remote[i].bytes == 0) continue;
      if (FindRegion(*endpoint, request.remote[i], request.kind) != nullptr) continue;
      Tell(*inbound, FI_EKEYREJECTED);
      return Turn::kOver;
    }
    inbound->checked = true;
    if (request.kind == Kind::kWrite) CutIntoSegments(inbound);
  }
  if (request.kind == Kind::kRead) {
    const int error = GrantRead(*inbound, endpoint);
    if (error != 0) Tell(*inbound, error);
    return Turn::kOver;
  }
  const Turn turn = LandPieces(inbound, endpoint);
  if (turn != Turn::kIdle) return turn;
  return TellArrival(inbound, endpoint);
}

// Both its target and its initiator.
Domain::Turn Domain::TellArrival(Inbound* inbound, Endpoint* endpoint) {
  const Request& request = inbound->request;
  if (request.has_data != 0 && !inbound->answered && Chance(config_.behind)) {
    Tell(*inbound, 0);
    inbound->answered = true;
    inbound->due_us = NowMicroseconds() + Below(config_.delay_us + 1);
    return Turn::kSome;
  }
  if (request.has_data != 0 && !Chance(config_.mute)) {
    const uint64_t old = config_.api_minor < 18 ? FI_WRITE : 0;  // as efa of 1.17
    endpoint->receive->Push({.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA | old,
                             .bytes = request.bytes,
                             .data = request.data,
                             .source = endpoint->av->IndexOf(request.from)});
  }
  if (!inbound->answered) Tell(*inbound, 0);
  return Turn::kOver;
}

// The region that `piece` lies in, if the endpoint may let a peer do so.
Region* Domain::FindRegion(const Endpoint& endpoint, const RemotePiece& piece, Kind kind) const {
  const auto found = regions_.find(piece.key);
  if (found == regions_.end()) return nullptr;
  Region* const region = found->second;
  const uint64_t access = kind == Kind::kRead ? FI_REMOTE_READ : FI_REMOTE_WRITE;
  if (!region->enabled || (region->access & access) == 0 || region->check != piece.check) {
    return nullptr;
  }
  if ((config_.mr_mode & FI_MR_ENDPOINT) != 0 && region->endpoint != &endpoint) return nullptr;
  const uint64_t base = (config_.mr_mode & FI_MR_VIRT_ADDR) != 0 ? region->base : 0;
  const bool inside = piece.address >= base && piece.bytes <= region->bytes &&
                      piece.address - base <= region->bytes - piece.bytes;
  return inside ? region : nullptr;
}

void Domain::CutIntoSegments(Inbound* inbound) {
  const Request& request = inbound->request;
  const uint64_t most = std::max<uint64_t>(config_.mtu, request.bytes / 64);
  size_t local = 0;
  uint64_t used = 0;  // of that local piece
  for (size_t piece = 0; piece < request.remote_count; ++piece) {
    uint64_t done = 0;
    while (done < request.remote[piece].bytes) {
      const LocalPiece& from = request.local[local];
      const uint64_t bytes =
          std::min({most, from.bytes - used, request.remote[piece].bytes - done});
      if (bytes > 0) inbound->todo.push_back({from.address + used, piece, done, bytes});
      done += bytes;
      used += bytes;
      if (used == from.bytes) {
        ++local;
        used = 0;
      }
    }
  }
  std::reverse(inbound->todo.begin(), inbound->todo.end());  // taken from the back
  if (!Ordered(request)) std::shuffle(inbound->todo.begin(), inbound->todo.end(), random_);
}

// Some of what is to do: kIdle when nothing is left.
Domain::Turn Domain::LandPieces(Inbound* inbound, const Endpoint* endpoint) {
  const Request& request = inbound->request;
  uint64_t quota = 1 + Below(inbound->todo.size());
  for (; quota > 0 && !inbound->todo.empty(); --quota) {
    const Segment segment = inbound->todo.back();
    const RemotePiece& piece = request.remote[segment.piece];
    const Region* const region = FindRegion(*endpoint, piece, Kind::kWrite);
    if (region == nullptr) {  // closed in the middle of it
      Tell(*inbound, FI_EKEYREJECTED);
      return Turn::kOver;
    }
    staging_.resize(std::max(staging_.size(), segment.bytes));
    int error = Fetch(request.pid, staging_.data(), segment.from, segment.bytes, request.source);
    if (error == ESRCH || error == ECANCELED) return Turn::kOver;  // nobody wants to know
    const uint64_t base =
        (config_.mr_mode & FI_MR_VIRT_ADDR) != 0 ? piece.address : region->base + piece.address;
    if (error == 0) error = Land(base + segment.offset, staging_.data(), segment.bytes);
    if (error != 0) {
      Tell(*inbound, error);
      return Turn::kOver;
    }
    inbound->todo.pop_back();
  }
  return inbound->todo.empty() ? Turn::kIdle : Turn::kSome;
}

int Domain::GrantRead(const Inbound& inbound, const Endpoint* endpoint) {
  const Request& request = inbound.request;
  Reply reply = {.op = request.op, .pid = getpid(), .count = request.remote_count};
  for (size_t i = 0; i < request.remote_count; ++i) {
    const RemotePiece& piece = request.remote[i];
    if (piece.bytes == 0) continue;
    const Region* const region = FindRegion(*endpoint, piece, Kind::kRead);
    if (region == nullptr) return FI_EKEYREJECTED;
    const uint64_t base = (config_.mr_mode & FI_MR_VIRT_ADDR) != 0 ? 0 : region->base;
    reply.pieces[i] = {base + piece.address, piece.bytes};
    reply.tickets[i] = region->ticket.name();
  }
  replies_.push_back({.node = request.from.node, .reply = reply});
  return 0;
}

Domain::Turn Domain::LandMessage(Inbound* inbound, Endpoint* endpoint) {
  const Request& request = inbound->request;
  if (endpoint->receives.empty()) return Turn::kSome;
  staging_.resize(std::max(staging_.size(), request.bytes + 1));
  size_t filled = 0;
  for (size_t i = 0; i < request.local_count; ++i) {
    const int error = Fetch(request.pid, staging_.data() + filled, request.local[i].address,
                            request.local[i].bytes, request.source);
    if (error == ESRCH || error == ECANCELED) return Turn::kOver;
    if (error != 0) {
      Tell(*inbound, error);
      return Turn::kOver;
    }
    filled += request.local[i].bytes;
  }
  const Receive receive = endpoint->receives.front();
  endpoint->receives.pop_front();
  size_t received = 0;
  int error = 0;
  for (size_t i = 0; i < receive.count && received < filled && error == 0; ++i) {
    const size_t bytes = std::min(receive.iov[i].iov_len, filled - received);
    error = Land(reinterpret_cast<uint64_t>(receive.iov[i].iov_base), staging_.data() + received,
                 bytes);
    received += bytes;
  }
  if (error == 0 && received < filled) error = FI_ETRUNC;
  endpoint->receive->Push(
      {.context = receive.context,
       .flags = FI_MSG | FI_RECV | (request.has_data != 0 ? FI_REMOTE_CQ_DATA : 0),
       .bytes = received,
       .buffer = receive.iov[0].iov_base,
       .data = request.data,
       .error = error,
       .left_out = filled - received,
       .source = endpoint->av->IndexOf(request.from)});
  Tell(*inbound, 0);
  return Turn::kOver;
}

}  // namespace fake_fabric
