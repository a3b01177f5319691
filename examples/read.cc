// The pull direction: a decode worker reads blocks out of a prefill worker's memory, and the
// notification tells that worker that it may use them again.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvxfer/agent.h"

namespace {

constexpr size_t kBlock = 64 * 1024;
constexpr size_t kBlocks = 8;

absl::Status Run() {
  // Before the agents: registered memory must outlive its registration, also on an early return.
  std::vector<std::byte> source(kBlocks * kBlock);
  std::vector<std::byte> target(kBlocks * kBlock);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i / kBlock + 1);

  kvxfer::AgentOptions options;
  options.name = "prefill-0";
  auto prefill = kvxfer::Agent::Create(options);
  if (!prefill.ok()) return prefill.status();
  options.name = "decode-0";
  auto decode = kvxfer::Agent::Create(options);
  if (!decode.ok()) return decode.status();
  auto offered = (*prefill)->RegisterMemory({.data = source.data(), .bytes = source.size()},
                                            kvxfer::Access::kRemoteRead);
  if (!offered.ok()) return offered.status();
  auto own = (*decode)->RegisterMemory({.data = target.data(), .bytes = target.size()},
                                       kvxfer::Access::kNone);
  if (!own.ok()) return own.status();
  auto metadata = (*prefill)->Metadata();
  if (!metadata.ok()) return metadata.status();
  if (auto peer = (*decode)->AddPeer(*metadata); !peer.ok()) return peer.status();

  // Every second block, gathered at the front of the target.
  std::vector<kvxfer::Descriptor> local;
  std::vector<kvxfer::Descriptor> remote;
  for (size_t i = 0; i < kBlocks; i += 2) {
    local.push_back({reinterpret_cast<uint64_t>(&target[i / 2 * kBlock]), kBlock});
    remote.push_back({reinterpret_cast<uint64_t>(&source[i * kBlock]), kBlock});
  }
  kvxfer::TransferOptions tell;
  tell.notification = "blocks 0, 2, 4 and 6 are free again";
  tell.deadline = std::chrono::seconds(5);
  auto transfer = (*decode)->Read("prefill-0",
                                  kvxfer::DescriptorBlocks{.local = local, .remote = remote}, tell);
  if (!transfer.ok()) return transfer.status();
  if (absl::Status done = transfer->Wait(std::chrono::seconds(5)); !done.ok()) return done;
  for (size_t i = 0; i < kBlocks / 2; ++i) {
    if (std::memcmp(&target[i * kBlock], &source[2 * i * kBlock], kBlock) != 0) {
      return absl::DataLossError("block " + std::to_string(i) + " differs");
    }
  }
  auto told = (*prefill)->WaitNotification(std::chrono::seconds(5));
  if (!told.ok()) return told.status();
  std::printf("%s says: %s\n", told->peer.c_str(), told->payload.c_str());

  // Nothing can touch it any more once it is deregistered.
  if (absl::Status gone = (*prefill)->DeregisterMemory(*offered); !gone.ok()) return gone;
  return (*decode)->DeregisterMemory(*own);
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "read: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
