// The initiator's half of a domain: posting, what becomes of an op on its way, completions.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "tests/support/fake_fabric/domain.h"
#include "tests/support/fake_fabric/gpu.h"

namespace fake_fabric {
namespace {

// Larger ops are never copied, so they neither complete early nor land late.
constexpr uint64_t kMaxCopy = uint64_t{1} << 20;
constexpr uint64_t kProbeEvery = 10'000;  // µs

size_t Sum(const iovec* iov, size_t count) {
  size_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += iov[i].iov_len;
  return sum;
}

uint64_t LocalAccess(Kind kind) {
  return kind == Kind::kWrite ? FI_WRITE : kind == Kind::kRead ? FI_READ : FI_SEND;
}

uint64_t CompletionFlags(Kind kind) {
  return kind == Kind::kWrite  ? FI_RMA | FI_WRITE
         : kind == Kind::kRead ? FI_RMA | FI_READ
                               : FI_MSG | FI_SEND;
}

}  // namespace

int Domain::Check(const Endpoint& endpoint, const Posting& posting) const {
  if (!endpoint.enabled) return -FI_EOPBADSTATE;
  const size_t bytes = Sum(posting.iov, posting.count);
  if (posting.count > config_.iov_limit || posting.remote_count > config_.rma_iov_limit) {
    return -FI_EINVAL;
  }
  if (bytes > config_.max_msg_size) return -FI_EMSGSIZE;
  const bool inject = posting.injected || (posting.flags & FI_INJECT) != 0;
  if (inject && (bytes > config_.inject_size || posting.kind == Kind::kRead)) return -FI_EMSGSIZE;
  if (posting.has_data && (config_.cq_data_size == 0 || posting.kind == Kind::kRead)) {
    return -FI_EOPNOTSUPP;
  }
  size_t remote = 0;
  for (size_t i = 0; i < posting.remote_count; ++i) remote += posting.remote[i].len;
  if (posting.kind != Kind::kSend && remote != bytes) return -FI_EINVAL;
  if (endpoint.av->Find(posting.peer) == nullptr) return -FI_EADDRNOTAVAIL;
  // A real one may have a CPU copy it, which nobody here wants.
  for (size_t i = 0; i < posting.count && !endpoint.device_only; ++i) {
    if (IsGpuMemory(reinterpret_cast<uint64_t>(posting.iov[i].iov_base))) return -FI_EOPNOTSUPP;
  }
  if ((config_.mr_mode & FI_MR_LOCAL) == 0 || inject) return 0;
  for (size_t i = 0; i < posting.count; ++i) {
    if (posting.iov[i].iov_len == 0) continue;
    const void* const desc = posting.desc == nullptr ? nullptr : posting.desc[i];
    if (!Covers(desc, posting.iov[i], LocalAccess(posting.kind))) return -FI_EINVAL;
  }
  return 0;
}

// False: no ticket is left.
bool Domain::Describe(const Endpoint& endpoint, const Posting& posting, Op* op) {
  if (!op->ticket.valid()) return false;
  Request& request = op->request;
  request.op = TrulyRandom();
  request.kind = posting.kind;
  request.pid = getpid();
  request.from = endpoint.address;
  request.to = *endpoint.av->Find(posting.peer);
  request.bytes = Sum(posting.iov, posting.count);
  request.source = op->ticket.name();
  if (posting.has_data) {
    const size_t bits = 8 * config_.cq_data_size;
    request.has_data = 1;
    request.data = bits >= 64 ? posting.data : posting.data & ((uint64_t{1} << bits) - 1);
  }
  request.local_count = static_cast<uint16_t>(posting.count);
  for (size_t i = 0; i < posting.count; ++i) {
    request.local[i] = {reinterpret_cast<uint64_t>(posting.iov[i].iov_base),
                        posting.iov[i].iov_len};
  }
  request.remote_count = static_cast<uint16_t>(posting.remote_count);
  for (size_t i = 0; i < posting.remote_count; ++i) {
    const fi_rma_iov& remote = posting.remote[i];
    request.remote[i] = {.address = remote.addr, .bytes = remote.len, .key = remote.key};
    if ((config_.mr_mode & FI_MR_RAW) == 0) continue;
    const auto mapped = mapped_keys.find(remote.key);
    const bool known = mapped != mapped_keys.end();
    request.remote[i].key = known ? mapped->second.first : 0;
    request.remote[i].check = known ? mapped->second.second : 0;
  }
  if (Chance(0.25)) request.hold_us = Below(config_.delay_us + 1);
  return true;
}

ssize_t Domain::Post(Endpoint* endpoint, const Posting& posting) {
  const int bad = Check(*endpoint, posting);
  if (bad != 0) return bad;
  if (*endpoint->used >= endpoint->tx_size || Chance(config_.eagain)) return -FI_EAGAIN;
  auto op = std::make_unique<Op>();
  op->endpoint = endpoint;
  op->context = posting.context;
  op->completion_flags = CompletionFlags(posting.kind);
  op->injected = posting.injected;
  op->wanted = !posting.injected && (!endpoint->selective || (posting.flags & FI_COMPLETION) != 0);
  op->delivery = (posting.flags & FI_DELIVERY_COMPLETE) != 0;
  op->space = endpoint->used;
  if (!Describe(*endpoint, posting, op.get())) return -FI_EAGAIN;
  op->may_fail = !posting.injected && endpoint->posted++ >= config_.spare;
  ++*op->space;
  WriteTo(posting.context);
  if (posting.injected || (posting.flags & FI_INJECT) != 0) CopySource(op.get());
  unsent_.push_back(op->request.op);
  ops_.emplace(op->request.op, std::move(op));
  if (config_.progress == Progress::kAuto || unsent_.size() >= kBatch) FlushUnsent();
  return 0;
}

void Domain::CopySource(Op* op) {
  if (!op->copy.empty() || op->request.bytes == 0) return;
  op->copy.reserve(op->request.bytes);
  for (size_t i = 0; i < op->request.local_count; ++i) {
    const auto* const from = reinterpret_cast<const std::byte*>(op->request.local[i].address);
    op->copy.insert(op->copy.end(), from, from + op->request.local[i].bytes);
  }
  op->request.local_count = 1;
  op->request.local[0] = {reinterpret_cast<uint64_t>(op->copy.data()), op->copy.size()};
}

// What becomes of an op that is about to leave.
void Domain::DecideFate(Op* op) {
  const bool can_copy = op->request.kind != Kind::kRead && op->request.bytes <= kMaxCopy;
  if (op->may_fail && Chance(config_.errors)) {
    const uint64_t how = Below(3);
    if (how == 0 || (how == 2 && !can_copy)) {
      Complete(op, FI_EIO);  // and is not sent
      ops_.erase(op->request.op);
      return;
    }
    if (how == 1) {
      op->doomed = true;
      return;
    }
    CopySource(op);
    op->request.hold_us = config_.late_us / 2 + Below(config_.late_us / 2 + 1);
    Complete(op, FI_EIO);
    return;
  }
  if (can_copy && !op->delivery && Chance(config_.early)) {
    CopySource(op);
    Complete(op, 0);
  }
}

// As many to a datagram as go to the same node in a row.
void Domain::FlushUnsent() {
  std::set<uint64_t> full;
  std::deque<uint64_t> left;
  while (!unsent_.empty()) {
    uint64_t node = 0;
    std::vector<std::byte> datagram(sizeof(Packet));
    const Packet packet = Packet::kRequests;
    std::memcpy(datagram.data(), &packet, sizeof(packet));
    std::vector<uint64_t> ids;
    while (!unsent_.empty() && ids.size() < kBatch) {
      const uint64_t id = unsent_.front();
      const auto found = ops_.find(id);
      if (found == ops_.end()) {
        unsent_.pop_front();
        continue;
      }
      Op* const op = found->second.get();
      if (node != 0 && op->request.to.node != node) break;
      unsent_.pop_front();
      if (full.contains(op->request.to.node)) {
        left.push_back(id);
        continue;
      }
      node = op->request.to.node;
      if (!op->sent) {
        op->sent = true;
        DecideFate(op);
        if (!ops_.contains(id)) continue;
      }
      op->sent_at_us = NowMicroseconds();
      const auto* const bytes = reinterpret_cast<const std::byte*>(&op->request);
      datagram.insert(datagram.end(), bytes, bytes + sizeof(Request));
      ids.push_back(id);
    }
    if (ids.empty()) continue;
    const SendResult result = wire_.Send(node, datagram.data(), datagram.size());
    if (result == SendResult::kFull) {
      full.insert(node);
      left.insert(left.end(), ids.begin(), ids.end());
    } else if (result == SendResult::kGone) {
      for (const uint64_t id : ids) answers_.push_back({.op = id, .error = FI_EHOSTUNREACH});
    }
  }
  unsent_ = std::move(left);
}

void Domain::HandleAnswers() {
  while (!answers_.empty()) {
    const Reply reply = answers_.front();
    answers_.pop_front();
    Answer(reply);
  }
}

void Domain::Answer(const Reply& reply) {
  const auto found = ops_.find(reply.op);
  if (found == ops_.end()) return;
  Op* const op = found->second.get();
  int error = reply.error;
  if (error == 0 && op->request.kind == Kind::kRead && op->endpoint != nullptr) {
    error = FetchRead(*op, reply);
  }
  if (op->doomed && error == 0) error = FI_EIO;
  Complete(op, error);
  ops_.erase(found);
}

// The bytes of a read, piece by piece out of the target's memory.
int Domain::FetchRead(const Op& op, const Reply& reply) {
  size_t local = 0;
  uint64_t filled = 0;  // of that local piece
  for (size_t i = 0; i < reply.count; ++i) {
    uint64_t done = 0;
    while (done < reply.pieces[i].bytes) {
      const LocalPiece& to = op.request.local[local];
      const uint64_t bytes = std::min(reply.pieces[i].bytes - done, to.bytes - filled);
      if (bytes > 0) {
        const int error = Fetch(reply.pid, reinterpret_cast<void*>(to.address + filled),
                                reply.pieces[i].address + done, bytes, reply.tickets[i]);
        if (error == ECANCELED) return FI_EKEYREJECTED;
        if (error != 0) return error == ESRCH ? FI_EHOSTUNREACH : error;
      }
      done += bytes;
      filled += bytes;
      if (filled == to.bytes) {
        ++local;
        filled = 0;
      }
    }
  }
  return 0;
}

void Domain::Complete(Op* op, int error) {
  if (op->completed) return;
  op->completed = true;
  if (op->endpoint == nullptr || op->injected || (!op->wanted && error == 0)) {
    --*op->space;
    return;
  }
  op->endpoint->transmit->Push({.context = op->context,
                                .flags = op->completion_flags,
                                .bytes = op->request.bytes,
                                .error = error,
                                .space = op->space});
  if (error == 0 || !Chance(config_.repeat)) return;
  op->endpoint->transmit->Push(
      {.context = op->context, .flags = op->completion_flags, .error = error});
}

void Domain::Withdraw(Endpoint* endpoint) {
  for (auto at = ops_.begin(); at != ops_.end();) {
    Op* const op = at->second.get();
    const bool copied = !op->copy.empty() || op->request.bytes == 0;
    if (op->endpoint != endpoint) {
      ++at;
      continue;
    }
    op->endpoint = nullptr;
    op->wanted = false;
    // What is in the fabric does not come back; neither, half the times, does what waited.
    if (!op->sent && op->request.kind != Kind::kRead && op->request.bytes <= kMaxCopy &&
        config_.order == Order::kNone && Chance(0.5)) {
      CopySource(op);
      op->request.hold_us = config_.late_us / 2 + Below(config_.late_us / 2 + 1);
      op->sent = true;
      ++at;
    } else if (op->sent && copied) {
      ++at;
    } else {
      at = ops_.erase(at);  // and with it the ticket
    }
  }
  FlushUnsent();
}

// Ops whose target does not answer: is it there at all?
void Domain::LookForTheDead(uint64_t now) {
  if (ops_.empty() || now - probed_us_ < kProbeEvery) return;
  probed_us_ = now;
  std::set<uint64_t> nodes;
  for (const auto& [id, op] : ops_) {
    if (op->sent && now - op->sent_at_us > kProbeEvery / 2) nodes.insert(op->request.to.node);
  }
  const Packet probe = Packet::kProbe;
  for (const uint64_t node : nodes) {
    if (wire_.Send(node, &probe, sizeof(probe)) != SendResult::kGone) continue;
    for (const auto& [id, op] : ops_) {
      if (op->request.to.node != node || !op->sent) continue;
      answers_.push_back({.op = id, .error = FI_EHOSTUNREACH});
      if (op->endpoint != nullptr) op->endpoint->transmit->Signal();
    }
  }
}

void Domain::FlushReplies() {
  std::set<uint64_t> full;
  std::deque<OutReply> left;
  while (!replies_.empty()) {
    const uint64_t node = replies_.front().node;
    if (full.contains(node)) {
      left.push_back(replies_.front());
      replies_.pop_front();
      continue;
    }
    std::vector<std::byte> datagram(sizeof(Packet));
    const Packet packet = Packet::kReplies;
    std::memcpy(datagram.data(), &packet, sizeof(packet));
    size_t count = 0;
    while (count < replies_.size() && count < kBatch && replies_[count].node == node) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(&replies_[count].reply);
      datagram.insert(datagram.end(), bytes, bytes + sizeof(Reply));
      ++count;
    }
    if (wire_.Send(node, datagram.data(), datagram.size()) == SendResult::kFull) {
      full.insert(node);
      continue;
    }
    replies_.erase(replies_.begin(), replies_.begin() + static_cast<ptrdiff_t>(count));
  }
  replies_ = std::move(left);
}

}  // namespace fake_fabric
