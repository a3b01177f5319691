// The transfers that the application posts, and what it asks of them through their handles.
//
// Thread-safety: all methods from any thread, except Open.

#ifndef KVXFER_AGENT_ENGINE_TRANSFER_SERVICE_H_
#define KVXFER_AGENT_ENGINE_TRANSFER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/transfer.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/peer_table.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"

namespace kvxfer {

class TransferService {
 public:
  using Blocks = std::variant<std::monostate, PagedBlocks, DescriptorBlocks>;

  // All of them outlive it.
  struct Parts {
    Runtime* runtime = nullptr;
    const CallGate* gate = nullptr;
    PeerTable* peers = nullptr;
    const PeerViews* views = nullptr;
  };
  explicit TransferService(const Parts& parts) : parts_(parts) {}
  // Before the first transfer. `self` shares ownership with what owns the service: a handle that
  // has locked it keeps the agent.
  void Open(std::weak_ptr<TransferService> self) { self_ = std::move(self); }

  absl::StatusOr<TransferPtr> Start(TransferKind kind, std::string_view peer, const Blocks& blocks,
                                    TransferOptions&& options);

  // --- the steps of Start, for transfers with a group ---
  absl::Status CheckOptions(const TransferOptions& options) const;
  // A record that is complete except for its blocks, and not posted.
  absl::StatusOr<TransferPtr> NewRecord(TransferKind kind,
                                        const std::shared_ptr<const PeerView>& view,
                                        TransferOptions&& options);
  // Posts `members` as `whole`, which gets its id here. It is done at once if there are none.
  // `asleep`: see ProgressLoop::Submit.
  absl::Status PostGroup(const TransferPtr& whole, std::vector<TransferPtr> members,
                         ProgressLoop::While asleep = ProgressLoop::While::kSubmitterDrives);

  // On the driver: hands a posted transfer to its peer.
  void Enlist(const TransferPtr& record);

  // --- handles ---
  const CallGate& gate() const { return *parts_.gate; }
  void Cancel(const TransferPtr& record);
  // See Transfer::Watch.
  absl::Status Watch(const TransferPtr& record, uint64_t user_word);
  // Runs a callback of the application.
  void Run(Dispatcher::Callback callback) { parts_.runtime->dispatcher.Run(std::move(callback)); }

 private:
  // Takes the place of the end in the event queue, if the options have a user word.
  absl::Status ReserveEnd(internal::TransferRecord& record);
  // Has the driver enlist what `handle` stands for. An error: the agent is closed, and nothing is
  // posted.
  absl::Status Submit(const TransferPtr& handle, ProgressLoop::Command enlist,
                      ProgressLoop::While asleep = ProgressLoop::While::kSubmitterDrives);
  static absl::Status NoPlaceForEnd();

  const Parts parts_;
  std::weak_ptr<TransferService> self_;
  std::atomic<uint64_t> last_{0};  // the id of the last transfer
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_TRANSFER_SERVICE_H_
