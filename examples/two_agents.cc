// Two agents in one process: register memory, exchange metadata, write, be told.
//
// In production the two run in different processes, usually on different hosts, and the metadata
// travels by whatever the two already talk over (an HTTP request, a key-value store, ...).

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvxfer/agent.h"

namespace {

constexpr size_t kBytes = 1 << 20;

absl::Status Run() {
  // Any memory can be registered. HostBuffer's can also be mapped by peers on the same host, which
  // is the fastest way between two processes. It is here before its agent, so that it outlives
  // the registration on every way out.
  auto source = kvxfer::HostBuffer::Allocate(kBytes);
  if (!source.ok()) return source.status();
  auto target = kvxfer::HostBuffer::Allocate(kBytes);
  if (!target.ok()) return target.status();
  std::memset(source->data(), 0x5a, kBytes);

  kvxfer::AgentOptions options;
  options.name = "prefill-0";
  auto prefill = kvxfer::Agent::Create(options);
  if (!prefill.ok()) return prefill.status();
  options.name = "decode-0";
  auto decode = kvxfer::Agent::Create(options);
  if (!decode.ok()) return decode.status();
  auto local = (*prefill)->RegisterMemory(source->span(), kvxfer::Access::kNone);
  if (!local.ok()) return local.status();
  auto remote = (*decode)->RegisterMemory(target->span(), kvxfer::Access::kRemoteWrite);
  if (!remote.ok()) return remote.status();

  // Taken after registering, so that it tells of the region.
  auto metadata = (*decode)->Metadata();
  if (!metadata.ok()) return metadata.status();
  auto peer = (*prefill)->AddPeer(*metadata);
  if (!peer.ok()) return peer.status();

  const std::vector<kvxfer::Descriptor> from = {
      {reinterpret_cast<uint64_t>(source->data()), kBytes}};
  const std::vector<kvxfer::Descriptor> to = {{reinterpret_cast<uint64_t>(target->data()), kBytes}};
  kvxfer::TransferOptions tell;
  tell.notification = "request 7";
  auto transfer =
      (*prefill)->Write(*peer, kvxfer::DescriptorBlocks{.local = from, .remote = to}, tell);
  if (!transfer.ok()) return transfer.status();

  // The target hears of it once every byte is visible.
  auto told = (*decode)->WaitNotification(std::chrono::seconds(5));
  if (!told.ok()) return told.status();
  if (std::memcmp(source->data(), target->data(), kBytes) != 0) {
    return absl::DataLossError("the bytes differ");
  }
  if (absl::Status done = transfer->Wait(std::chrono::seconds(5)); !done.ok()) return done;
  std::printf("%s has arrived from %s: %zu bytes over %s\n", told->payload.c_str(),
              told->peer.c_str(), kBytes, transfer->stats().path.c_str());

  auto why = (*prefill)->Explain(*peer);
  if (!why.ok()) return why.status();
  std::printf("%s\n", why->ToString().c_str());
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "two_agents: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
