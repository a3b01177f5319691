// The model's beginning and its steps.
#include "tests/unit/core/protocol/protocol_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer::testing {
namespace {

auto AddTo(std::vector<Step>& steps) {
  return [&steps](StepKind kind, size_t a = 0, size_t b = 0) {
    steps.push_back({kind, static_cast<uint8_t>(a), static_cast<uint8_t>(b)});
  };
}

}  // namespace

std::string ToString(Step step) {
  static constexpr const char* kNames[] = {
      "post",      "open-idle", "close",  "deliver",  "to-target", "to-initiator", "fence",
      "ask-fence", "drain",     "fenced", "complete", "explain",   "rejoin",       "abort",
      "fail-rail", "cut",       "grant",  "suspect",  "time-up",   "lose"};
  return absl::StrCat(kNames[static_cast<size_t>(step.kind)], "(", static_cast<int>(step.a), ",",
                      static_cast<int>(step.b), ")");
}

World::World(const ModelConfig& config)
    : config_(&config),
      initiator_(std::make_unique<ReliableChannel>()),
      sender_(std::make_unique<SendTracker>(initiator_.get(), std::chrono::seconds(1))) {
  BeginSession();
  grants_left_ = config.grants;
  Begin(config);
}

// The target knows nothing, and lends slots and credit.
void World::BeginSession() {
  table_ = std::make_unique<SlotTable>(1 + config_->grants, config_->first_generation);
  receiver_ = std::make_unique<TargetSession>(table_.get(), kModelOwner, kModelLimits);
  receiver_->AddLink(kModelLink);
  *initiator_ = ReliableChannel();
  target_ = ReliableChannel();
  observed_ = 0;
  next_order_ = 1;
  SlotGrantFrame grant = *table_->Grant(kModelOwner);
  grant.range.count = config_->slots;
  Check(sender_->slots().OnGrant(grant));
  sender_->credit().OnCredit(*receiver_->TakeCredit({}));
}

void World::Begin(const ModelConfig& config) {
  config_ = &config;
  first_id_ += out_.size();
  out_.clear();
  truth_.assign(config.transfers.size(), {});
  for (const TransferSpec& spec : config.transfers) {
    Outbound& out = out_.emplace_back();
    out.spec = spec;
    out.id = first_id_ + out_.size() - 1;
    out.order = spec.ordered ? next_order_++ : 0;
    Begin(out);
  }
  rails_ = {};  // at rest they are up and empty
  failures_left_ = config.rail_failures;
  alone_left_ = config.alone_failures;
  impatience_left_ = config.impatience;
  cuts_left_ = config.cuts;
  losses_left_ = config.losses;
  idle_left_ = config.idle_lanes;
  Settle();
}

void World::Enabled(std::vector<Step>& steps) const {
  steps.clear();
  EnabledOfTransfers(steps);
  EnabledOfRails(steps);
  const auto add = AddTo(steps);
  if (lost_) return add(StepKind::kRejoin);
  const size_t reach = config_->control_reorders ? 4 : 1;
  for (size_t i = 0; i < std::min(reach, to_target_.size()); ++i) add(StepKind::kToTarget, i);
  for (size_t i = 0; i < std::min(reach, to_initiator_.size()); ++i) {
    add(StepKind::kToInitiator, i);
  }
  for (size_t acks = 0; cuts_left_ > 0 && acks < 4; ++acks) add(StepKind::kCut, acks);
  if (grants_left_ > 0) add(StepKind::kGrant);
  if (losses_left_ > 0) add(StepKind::kLose);
}

void World::EnabledOfTransfers(std::vector<Step>& steps) const {
  const auto add = AddTo(steps);
  bool posting = false;
  bool ending = false;
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    const auto transfer = static_cast<uint8_t>(t);
    if (truth_[t].fencing && !lost_) add(StepKind::kFence, t, 0);
    const SendTracker::Transfer* const sending = Sending(transfer);
    if (sending == nullptr) continue;
    if (!out.posted.empty()) {
      add(StepKind::kComplete, t, 0);
      const bool suspect = alone_left_ > 0 && !out.spec.copied && !sending->ending();
      if (suspect && !rails_[out.posted.front().rail].failed) add(StepKind::kSuspect, t, 0);
    }
    ending = ending || (sending->ending() && !sending->ended());
    if (sending->ending()) continue;
    if (out.spec.may_abort) add(StepKind::kAbort, t, 0);
    if (posting && !config_->interleave) continue;
    const auto closing = sending->NextToClose();
    if (closing.has_value() && !rails_[closing->rail].failed) add(StepKind::kClose, t, 0);
    for (uint32_t rail = 0; rail < config_->rails; ++rail) {
      if (!CanPost(transfer, rail)) continue;
      posting = true;
      add(StepKind::kPost, t, rail);
      if (CanOpenIdle(transfer, rail)) add(StepKind::kOpenIdle, t, rail);
    }
  }
  if (ending && impatience_left_ > 0) add(StepKind::kTimeUp);
}

void World::EnabledOfRails(std::vector<Step>& steps) const {
  const auto add = AddTo(steps);
  for (size_t r = 0; r < config_->rails; ++r) {
    const Rail& rail = rails_[r];
    for (size_t i = 0; i < rail.items.size(); ++i) {
      // Items of one lane are alike; where the rail keeps order only the oldest can land.
      const auto same = [&](const Item& item) { return item.ref == rail.items[i].ref; };
      const auto here = rail.items.begin() + static_cast<ptrdiff_t>(i);
      if (std::none_of(rail.items.begin(), here, same)) add(StepKind::kDeliver, r, i);
      if (config_->rail_keeps_order) break;
    }
    if (lost_) continue;
    if (rail.failed) {
      add(rail.fenced    ? StepKind::kFenced
          : rail.fencing ? StepKind::kDrain
                         : StepKind::kAskFence,
          r, 0);
    }
    if (rail.suspected) add(StepKind::kExplain, r, 0);
    if (!rail.failed && failures_left_ > 0) add(StepKind::kFailRail, r, 0);
  }
}

bool World::Apply(Step step) {
  switch (step.kind) {
    case StepKind::kPost:
      Post(step.a, step.b);
      break;
    case StepKind::kOpenIdle:
      --idle_left_;
      Offer(step.a, step.b);
      break;
    case StepKind::kClose:
      Close(step.a);
      break;
    case StepKind::kDeliver:
      Deliver(step.a, step.b);
      break;
    case StepKind::kToTarget:
      Receive(true, step.a);
      break;
    case StepKind::kToInitiator:
      Receive(false, step.a);
      break;
    case StepKind::kFence:
      Fence(step.a);
      break;
    case StepKind::kAskFence:
      AskFence(step.a);
      break;
    case StepKind::kDrain:
      Drain(step.a);
      break;
    case StepKind::kFenced:
      RailFenced(step.a);
      break;
    case StepKind::kComplete:
      Complete(step.a);
      break;
    case StepKind::kExplain:
      Explain(step.a);
      break;
    case StepKind::kSuspect:
      Suspect(step.a);
      break;
    case StepKind::kTimeUp:
      TimeUp();
      break;
    case StepKind::kLose:
      Lose();
      break;
    case StepKind::kRejoin:
      Rejoin();
      break;
    case StepKind::kAbort:
      Abort(step.a);
      break;
    case StepKind::kFailRail:
      FailRail(step.a);
      break;
    case StepKind::kCut:
      Cut(step.a);
      break;
    case StepKind::kGrant:
      Grant();
      break;
  }
  Settle();
  CheckNothingLate();
  return error_.empty();
}

// Carries out what the last step asks for.
void World::Settle() {
  do {
    TakeSenderActions();
    FinishPosting();
  } while (sender_->has_actions() && error_.empty());
  if (lost_) return;
  Observe();
  Pump();
}

}  // namespace kvxfer::testing
