// The model's beginning and its steps.
#include "tests/unit/core/protocol/protocol_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/core/protocol/protocol_model_internal.h"

namespace kvxfer::testing {

std::string ToString(Step step) {
  static constexpr const char* kNames[] = {"post",      "open-idle",    "close", "deliver",
                                           "to-target", "to-initiator", "fence", "drain",
                                           "abort",     "fail-rail",    "cut",   "grant"};
  return absl::StrCat(kNames[static_cast<size_t>(step.kind)], "(", static_cast<int>(step.a), ",",
                      static_cast<int>(step.b), ")");
}

World::World(const ModelConfig& config)
    : config_(&config),
      table_(std::make_unique<SlotTable>(1 + config.grants, config.first_generation)),
      tracker_(std::make_unique<ArrivalTracker>(table_.get(), kModelOwner)) {
  SlotGrantFrame grant = *table_->Grant(kModelOwner);
  grant.range.count = config.slots;
  Check(pool_.AddGrant(grant));
  grants_left_ = config.grants;
  Begin(config);
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
    if (spec.slices > 0) {
      out.book =
          SendBook(spec.copied ? std::nullopt
                               : std::optional(LaneBook(config.rails, config.rail_keeps_order)));
    }
    TellLanes(out);
  }
  rails_ = {};  // at rest they are up and empty
  failures_left_ = config.rail_failures;
  cuts_left_ = config.cuts;
  idle_left_ = config.idle_lanes;
  Pump();
}

void World::Enabled(std::vector<Step>& steps) const {
  steps.clear();
  const auto add = [&steps](StepKind kind, size_t a, size_t b) {
    steps.push_back({kind, static_cast<uint8_t>(a), static_cast<uint8_t>(b)});
  };
  bool posting = false;
  for (size_t t = 0; t < out_.size(); ++t) {
    const Outbound& out = out_[t];
    if (truth_[t].fencing) add(StepKind::kFence, t, 0);
    if (out.state != State::kSending) continue;
    if (out.spec.may_abort) add(StepKind::kAbort, t, 0);
    if (posting && !config_->interleave) continue;
    const auto closing = out.book.NextToClose();
    if (closing.has_value() && !rails_[closing->rail].failed) add(StepKind::kClose, t, 0);
    for (uint32_t rail = 0; rail < config_->rails; ++rail) {
      if (!CanPost(out, rail)) continue;
      posting = true;
      add(StepKind::kPost, t, rail);
      if (CanOpenIdle(out, rail)) add(StepKind::kOpenIdle, t, rail);
    }
  }
  for (size_t r = 0; r < config_->rails; ++r) {
    const Rail& rail = rails_[r];
    for (size_t i = 0; i < rail.items.size(); ++i) {
      // Items of one lane are alike; where the rail keeps order only the oldest can land.
      const auto same = [&](const Item& item) { return item.ref == rail.items[i].ref; };
      const auto here = rail.items.begin() + static_cast<ptrdiff_t>(i);
      if (std::none_of(rail.items.begin(), here, same)) add(StepKind::kDeliver, r, i);
      if (config_->rail_keeps_order) break;
    }
    if (rail.failed) add(StepKind::kDrain, r, 0);
    if (!rail.failed && failures_left_ > 0) add(StepKind::kFailRail, r, 0);
  }
  const size_t reach = config_->control_reorders ? 4 : 1;
  for (size_t i = 0; i < std::min(reach, to_target_.size()); ++i) add(StepKind::kToTarget, i, 0);
  for (size_t i = 0; i < std::min(reach, to_initiator_.size()); ++i) {
    add(StepKind::kToInitiator, i, 0);
  }
  if (cuts_left_ > 0) {
    for (size_t acks = 0; acks < 4; ++acks) add(StepKind::kCut, acks, 0);
  }
  if (grants_left_ > 0) add(StepKind::kGrant, 0, 0);
}

bool World::Apply(Step step) {
  switch (step.kind) {
    case StepKind::kPost:
      Post(step.a, step.b);
      break;
    case StepKind::kOpenIdle:
      --idle_left_;
      OpenLane(out_[step.a], ProtocolModelAccess::Next(out_[step.a].book), step.b);
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
    case StepKind::kDrain:
      Drain(step.a);
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
  for (Outbound& out : out_) TellLanes(out);
  Pump();
  CheckNothingLate();
  return error_.empty();
}

}  // namespace kvxfer::testing
