#include "src/backends/loopback/node.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::loopback {
namespace {

struct Hub {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Node>> nodes;
};

// Never destroyed: agents may end after static destructors have begun.
Hub& TheHub() {
  static Hub* const hub = new Hub;
  return *hub;
}

absl::Status Refuse(const Run& run, std::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat("run of ", run.bytes, " bytes: ", ToAbsl(why),
                                                  "; take the peer's metadata again"));
}

std::byte* At(uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
}

}  // namespace

bool Publish(const std::shared_ptr<Node>& node) {
  Hub& hub = TheHub();
  std::lock_guard lock(hub.mutex);
  return hub.nodes.emplace(node->address(), node).second;
}

void Withdraw(const Node& node) {
  Hub& hub = TheHub();
  std::lock_guard lock(hub.mutex);
  hub.nodes.erase(node.address());
}

std::shared_ptr<Node> Find(std::string_view address) {
  Hub& hub = TheHub();
  std::lock_guard lock(hub.mutex);
  const auto it = hub.nodes.find(std::string(address));
  return it == hub.nodes.end() ? nullptr : it->second;
}

absl::StatusOr<std::shared_ptr<Node>> Node::Create(std::string address) {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return ErrnoStatus(errno, "eventfd of the loopback backend");
  }
  return std::shared_ptr<Node>(new Node(std::move(address), fd));
}

Node::~Node() { ::close(wake_fd_); }

void Node::Expose(const LocalRegion& region) {
  const auto lock = LockRegions();
  regions_[region.rkey] = region;
  ++version_;
}

void Node::Conceal(uint32_t rkey) {
  const auto lock = LockRegions();
  regions_.erase(rkey);
  ++version_;
}

absl::Status Node::Copy(const Op& op, CopyCursor& cursor, uint64_t budget, uint64_t* copied) {
  *copied = 0;
  std::shared_lock lock(memory_mutex_, std::defer_lock);
  // See turnstile_: a waiting registration goes first.
  {
    std::lock_guard pass(turnstile_);
    lock.lock();
  }
  if (memory_closed_) {
    return absl::UnavailableError(
        absl::StrCat("the agent of incarnation ", address_, " was destroyed"));
  }
  // The runs are checked again only if a region came or went since the last slice.
  if (cursor.checked != version_) {
    if (absl::Status checked = CheckRuns(op); !checked.ok()) return checked;
    cursor.checked = version_;
  }
  const bool write = op.kind == OpKind::kWrite;
  while (!cursor.left.done() && *copied < budget) {
    const Run& run = cursor.left.run();
    const uint64_t bytes = std::min(run.bytes, budget - *copied);
    // memmove, because both agents may have registered the same memory.
    std::memmove(At(write ? run.remote : run.local), At(write ? run.local : run.remote), bytes);
    *copied += bytes;
    cursor.left.Take(bytes);
  }
  return absl::OkStatus();
}

bool Node::Deliver(Mail mail) {
  std::lock_guard lock(mail_mutex_);
  if (mail_closed_) return false;
  mail_.push_back(std::move(mail));
  mail_count_.store(mail_.size(), std::memory_order_release);
  if (!woken_) {
    woken_ = true;
    const uint64_t one = 1;
    // Cannot fail: `woken_` keeps the counter at one at most.
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof(one));
  }
  return true;
}

void Node::Collect(size_t max, std::vector<Mail>& out) {
  std::lock_guard lock(mail_mutex_);
  for (; max > 0 && !mail_.empty(); --max) {
    out.push_back(std::move(mail_.front()));
    mail_.pop_front();
  }
  mail_count_.store(mail_.size(), std::memory_order_release);
  // The eventfd is reset only when the mailbox is empty, so a remaining mail keeps it readable.
  if (mail_.empty() && woken_) {
    woken_ = false;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &count, sizeof(count));
  }
}

std::deque<Mail> Node::Close() {
  {
    const auto lock = LockRegions();
    memory_closed_ = true;
    regions_.clear();
    ++version_;
  }
  std::lock_guard lock(mail_mutex_);
  mail_closed_ = true;
  mail_count_.store(0, std::memory_order_release);
  return std::exchange(mail_, {});
}

std::unique_lock<std::shared_mutex> Node::LockRegions() {
  std::lock_guard pass(turnstile_);
  return std::unique_lock(memory_mutex_);
}

absl::Status Node::CheckRuns(const Op& op) const {
  const Access wanted = op.kind == OpKind::kWrite ? Access::kRemoteWrite : Access::kRemoteRead;
  const LocalRegion* region = nullptr;
  const RemoteKey* key = nullptr;
  uint32_t rkey = 0;
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    if (region == nullptr || run.key != key) {
      key = run.key;
      rkey = key == nullptr ? 0 : static_cast<const Key*>(key)->rkey();
      const auto it = regions_.find(rkey);
      if (it == regions_.end()) return Refuse(run, "no such region at the target");
      region = &it->second;
      if (!Allows(region->access, wanted)) {
        return Refuse(run, "the region does not allow it");
      }
    }
    const uint64_t base = reinterpret_cast<uintptr_t>(region->span.data);
    const uint64_t size = region->span.bytes;
    if (run.remote < base || run.bytes > size || run.remote - base > size - run.bytes) {
      return Refuse(run, absl::StrCat("outside of its region of ", size, " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::loopback
