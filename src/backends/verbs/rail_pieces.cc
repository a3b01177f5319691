// Rail: building requests for memory that has more than one key per region and device: runs are cut
// where a piece of either end's memory ends. Also for GPU memory, whose bytes the CPU cannot copy
// into a request (IBV_SEND_INLINE).

#include <algorithm>

#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/rail.h"
#include "src/backends/verbs/regions.h"

namespace kvxfer::verbs {
namespace {

const VerbsRegistration& LocalOf(const Run& run) {
  return static_cast<const VerbsRegistration&>(*run.registration);
}
const VerbsRemoteKey& RemoteOf(const Run& run) {
  return static_cast<const VerbsRemoteKey&>(*run.key);
}

// The key of `memory` at `address` with `device`, which is `one` if there is only one. `bytes` is
// cut to the reach of the key.
template <typename Memory>
uint32_t KeyAt(const Memory& memory, size_t device, uint64_t address, uint32_t one,
               uint64_t& bytes) {
  const PieceKeys* const pieces = memory.pieces();
  return pieces == nullptr ? one : pieces->At(device, address, bytes);
}

}  // namespace

uint32_t Rail::PiecesOf(const Op& op) {
  uint32_t pieces = 0;
  for (const Run& run : op.runs) {
    for (uint64_t done = 0; done < run.bytes;) {
      uint64_t bytes = run.bytes - done;
      KeyAt(LocalOf(run), 0, run.local + done, 0, bytes);
      KeyAt(RemoteOf(run), 0, run.remote + done, 0, bytes);
      done += bytes;
      ++pieces;
    }
  }
  return std::max(pieces, 1u);
}

bool Rail::IntoGpu(const Op& op) {
  return std::ranges::any_of(op.runs, [](const Run& run) { return LocalOf(run).gpu() != nullptr; });
}

uint32_t Rail::BuildPieces(const Op& op, ibv_send_wr*& last) {
  RequestPool& pool = link_->backend().requests();
  const bool read = op.kind == OpKind::kRead;
  const size_t local_device = device().ordinal();
  const uint32_t max_sge = qp_->max_sge(read);
  uint32_t requests = 0;
  uint64_t end = 0;  // of the current request, at the peer
  uint64_t total = 0;
  bool by_cpu = true;  // the CPU can read all of its memory
  const auto finish = [&] {
    if (!read && by_cpu && total <= qp_->max_inline()) last->send_flags |= IBV_SEND_INLINE;
  };
  for (const Run& run : op.runs) {
    const VerbsRegistration& local = LocalOf(run);
    const VerbsRemoteKey& remote = RemoteOf(run);
    for (uint64_t done = 0; done < run.bytes;) {
      uint64_t bytes = run.bytes - done;
      const uint32_t lkey =
          KeyAt(local, local_device, run.local + done, local.lkey(local_device), bytes);
      const uint32_t rkey =
          KeyAt(remote, remote_device_, run.remote + done, remote.rkey(remote_device_), bytes);
      // The rkey must be equal too: adjacent addresses may lie in two pieces.
      const bool joins = requests > 0 && run.remote + done == end && last->wr.rdma.rkey == rkey &&
                         static_cast<uint32_t>(last->num_sge) < max_sge;
      ibv_sge& element = pool.NextElement();
      if (joins) {
        ++last->num_sge;
      } else {
        if (requests++ > 0) finish();
        last = &Chain();
        last->opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        last->sg_list = &element;
        last->num_sge = 1;
        last->wr.rdma.remote_addr = run.remote + done;
        last->wr.rdma.rkey = rkey;
        total = 0;
        by_cpu = true;
      }
      element = {.addr = run.local + done, .length = static_cast<uint32_t>(bytes), .lkey = lkey};
      by_cpu = by_cpu && local.gpu() == nullptr;
      total += bytes;
      done += bytes;
      end = run.remote + done;
    }
  }
  if (requests == 0) return BuildNothing(last);
  finish();
  return requests;
}

}  // namespace kvxfer::verbs
// Rail: requests for memory that has more than one key per region and device, where runs are cut at
// the boundaries of both ends' pieces; and for GPU memory, which the CPU cannot copy into a
// request.
