// What the files of the protocol's model share. protocol_model.h is what the tests include.

#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_INTERNAL_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/core/protocol/arrival_tracker.h"
#include "src/core/protocol/lane_book.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/send_tracker.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/target_session.h"

namespace kvxfer {

namespace testing {

inline constexpr SlotTable::SessionId kModelOwner = 7;
// All data goes over one connection.
inline constexpr uint64_t kModelLink = 1;
// Credit is no bound here.
inline constexpr TargetSession::Limits kModelLimits{
    .notifications = uint64_t{1} << 40, .notification_bytes = uint64_t{1} << 50, .transfers = 64};

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The notification of transfer `id`. It lives for ever, because all copies of a world name it.
const std::string& Payload(uint64_t id);

// State is appended byte by byte; every number here is small or is cut to what can differ.
class StateWriter {
 public:
  explicit StateWriter(std::vector<uint8_t>& bytes) : bytes_(bytes) { bytes_.clear(); }
  void Byte(uint64_t value) { bytes_.push_back(static_cast<uint8_t>(value)); }
  void Word(uint64_t value) {
    Byte(value);
    Byte(value >> 8);
  }
  void Slot(SlotRef ref) {
    Byte(ref.slot);
    Word(ref.generation);
  }
  void Text(std::string_view text) {
    Word(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }

 private:
  std::vector<uint8_t>& bytes_;
};

}  // namespace testing

// The one place that looks into the classes under test: to copy and to compare states.
struct ProtocolModelAccess {
  static std::unique_ptr<SlotTable> Copy(const SlotTable& from);
  // `slots`: the copy's table; borrowed.
  static std::unique_ptr<TargetSession> Copy(const TargetSession& from, SlotTable* slots);

  static void Write(const Lane& lane, testing::StateWriter& out);
  static void Write(const SliceSet& slices, testing::StateWriter& out);
  static void Write(const LaneBook& book, testing::StateWriter& out);
  static void Write(const SendBook& book, testing::StateWriter& out);
  static void Write(const SlotPool& pool, testing::StateWriter& out);
  static void Write(const SendTracker& tracker, testing::StateWriter& out);
  static void Write(const ReliableChannel& channel, testing::StateWriter& out);
  // `slots`: how many of each range are in use by the model.
  static void Write(const SlotTable& table, uint32_t slots, testing::StateWriter& out);
  static void Write(const TargetSession& session, uint64_t first_id, size_t transfers,
                    testing::StateWriter& out);
  static void Write(const ArrivalTracker& tracker, uint64_t first_id, size_t transfers,
                    testing::StateWriter& out);

  // What is posted next.
  static SendBook::Slice Next(const SendTracker::Transfer& transfer);
  // Whether that would open a lane on `rail`, and whether it needs a slot of those that are free.
  static bool OpensLane(const SendTracker::Transfer& transfer, uint32_t rail);
  static bool NeedsSlot(const SendTracker::Transfer& transfer, uint32_t rail);
  // The slot of the lane that its next slice is of, on `rail`.
  static SlotRef SlotOf(const SendTracker::Transfer& transfer, uint32_t rail);
  static const SlotPool& Pool(const SendTracker& tracker) { return tracker.slots_.pool(); }
  // What was pushed into the channel after frame `after`.
  static std::vector<std::string> Pushed(const ReliableChannel& channel, uint64_t after);
  static uint64_t LastPushed(const ReliableChannel& channel) { return channel.last_sequence_; }
  // Whether OPEN and AMEND have named every lane.
  static bool AllReported(const SendBook& book);

  // How many things the target still remembers, and how many notifications it holds.
  static size_t Remembered(const TargetSession& session);
};

}  // namespace kvxfer

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_INTERNAL_H_
