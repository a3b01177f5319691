#include "tests/support/fake_fabric/domain.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <new>

namespace fake_fabric {
namespace {

int CloseDomain(fid* f) {
  auto* const domain = From<Domain>(f);
  {
    const Domain::Hold hold(domain);
    if (domain->users > 0) return -FI_EBUSY;
  }
  --domain->fabric()->users;
  delete domain;
  return 0;
}

int ControlDomain(fid* f, int command, void* arg) {
  auto* const domain = From<Domain>(f);
  const Domain::Hold hold(domain);
  if (command == FI_MAP_RAW_MR) {
    const auto& map = *static_cast<struct fi_mr_map_raw*>(arg);
    uint64_t raw[2] = {0, 0};
    if ((domain->config().mr_mode & FI_MR_RAW) == 0) return -FI_ENOSYS;
    if (map.key_size != sizeof(raw)) return -FI_EINVAL;
    std::memcpy(raw, map.raw_key, sizeof(raw));
    const uint64_t key = TrulyRandom();
    domain->mapped_keys[key] = {raw[0], raw[1]};
    *map.key = key;
    return 0;
  }
  if (command == FI_UNMAP_KEY) {
    return domain->mapped_keys.erase(*static_cast<uint64_t*>(arg)) == 1 ? 0 : -FI_EINVAL;
  }
  return -FI_ENOSYS;
}

fi_ops fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseDomain,
    .bind = &NotThere,
    .control = &ControlDomain,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

fi_ops_domain domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = &OpenAv,
    .cq_open = &OpenCq,
    .endpoint = &OpenEndpoint,
    .scalable_ep = &NotThere,
    .cntr_open = &NotThere,
    .poll_open = &NotThere,
    .stx_ctx = &NotThere,
    .srx_ctx = &NotThere,
    .query_atomic = &NotThere,
    .query_collective = &NotThere,
    .endpoint2 = nullptr,
};

}  // namespace

uint64_t NowMicroseconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

Domain::Domain(Fabric* fabric, const fi_info& /*info*/)
    : fid_domain{},
      fabric_(fabric),
      config_(fabric->config),
      random_(config_.seed != 0 ? config_.seed : TrulyRandom()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  fid.fclass = FI_CLASS_DOMAIN;
  fid.ops = &fid_ops;
  ops = &domain_ops;
  mr = &region_ops;
}

Domain::~Domain() {
  {
    const Hold hold(this);
    stop_ = true;
  }
  eventfd_write(wake_, 1);
  if (thread_.joinable()) thread_.join();
  if (wake_ >= 0) close(wake_);
}

bool Domain::Start() {
  if (wire_.fd() < 0 || wake_ < 0) return false;
  // Peers read the source of a write out of this process.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  if (config_.progress != Progress::kBoth) thread_ = std::thread([this] { Run(); });
  return true;
}

// The device's thread: what arrives, lands and dies; and where progress is automatic, the rest.
void Domain::Run() {
  while (true) {
    bool more = false;
    uint64_t wait_us = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      ReceiveAll();
      more = LandSome();
      LookForTheDead(NowMicroseconds());
      if (config_.progress == Progress::kAuto) {
        HandleAnswers();
        FlushUnsent();
      }
      FlushReplies();
      const bool full =
          !replies_.empty() || (config_.progress == Progress::kAuto && !unsent_.empty());
      wait_us = full ? 200 : std::min<uint64_t>(NextDue(), ops_.empty() ? 1'000'000 : 5'000);
    }
    if (more) {
      if (waiting_ > 0) sched_yield();
      continue;
    }
    pollfd fds[] = {{wire_.fd(), POLLIN, 0}, {wake_, POLLIN, 0}};
    const timespec wait = {static_cast<time_t>(wait_us / 1'000'000),
                           static_cast<int64_t>(wait_us % 1'000'000 * 1000)};
    ppoll(fds, 2, &wait, nullptr);
    eventfd_t ignored = 0;
    if (fds[1].revents != 0) eventfd_read(wake_, &ignored);
  }
}

void Domain::Progress() {
  if (config_.progress == Progress::kBoth) {
    ReceiveAll();
    LandSome();
    LookForTheDead(NowMicroseconds());
    FlushReplies();
  }
  HandleAnswers();
  FlushUnsent();
}

void Domain::WriteTo(void* context) {
  if (config_.context2 && context != nullptr) std::memset(context, 0xa5, sizeof(fi_context2));
}

bool Domain::Chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
}

void Domain::ReceivePosted() {
  if (!inbound_.empty()) eventfd_write(wake_, 1);
}

int OpenDomain(Fabric* fabric, const fi_info* info, fid_domain** out, void* context) {
  auto domain = std::make_unique<Domain>(fabric, *info);
  if (!domain->Start()) return -FI_EMFILE;
  domain->fid.context = context;
  ++fabric->users;
  *out = domain.release();
  return 0;
}

}  // namespace fake_fabric
