// A paged KV cache: each layer has a region of K blocks and one of V blocks, and a request owns
// some block ids, the same in every layer. One Write moves all of them, in every layer.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvxfer/agent.h"

namespace {

constexpr uint32_t kLayers = 4;
constexpr uint64_t kBlocks = 64;             // in each region
constexpr uint64_t kBlockBytes = 16 * 1024;  // 16 tokens x 8 heads x 64 x 2 bytes
constexpr uint64_t kRegionBytes = kBlocks * kBlockBytes;
constexpr uint64_t kCacheBytes = 2 * kLayers * kRegionBytes;

// The cache comes first, so that it goes last: it must outlive its registration.
struct Worker {
  kvxfer::HostBuffer cache;
  std::vector<kvxfer::PagedRegion> regions;  // K and V of layer 0, K and V of layer 1, ...
  std::unique_ptr<kvxfer::Agent> agent;
};

absl::StatusOr<Worker> MakeWorker(const char* name) {
  Worker worker;
  auto cache = kvxfer::HostBuffer::Allocate(kCacheBytes);
  if (!cache.ok()) return cache.status();
  kvxfer::AgentOptions options;
  options.name = name;
  auto agent = kvxfer::Agent::Create(options);
  if (!agent.ok()) return agent.status();
  // The whole cache is one registration, however many blocks it has.
  auto region = (*agent)->RegisterMemory(cache->span(), kvxfer::Access::kReadWrite);
  if (!region.ok()) return region.status();
  for (uint64_t i = 0; i < 2 * kLayers; ++i) {
    worker.regions.push_back({.base = reinterpret_cast<uint64_t>(cache->data()) + i * kRegionBytes,
                              .block_bytes = kBlockBytes,
                              .stride = kBlockBytes,
                              .count = kBlocks});
  }
  worker.agent = *std::move(agent);
  worker.cache = *std::move(cache);
  return worker;
}

std::byte* BlockAt(const kvxfer::PagedRegion& region, uint32_t id) {
  return reinterpret_cast<std::byte*>(region.base + id * region.stride);
}

absl::Status Run() {
  auto prefill = MakeWorker("prefill-0");
  if (!prefill.ok()) return prefill.status();
  auto decode = MakeWorker("decode-0");
  if (!decode.ok()) return decode.status();
  auto metadata = decode->agent->Metadata();
  if (!metadata.ok()) return metadata.status();
  if (auto peer = prefill->agent->AddPeer(*metadata); !peer.ok()) return peer.status();

  // The request's block tables, as the two workers' allocators gave them.
  const std::vector<uint32_t> here = {3, 4, 5, 17, 40};
  const std::vector<uint32_t> there = {60, 61, 2, 9, 10};
  for (const auto& region : prefill->regions) {
    for (size_t i = 0; i < here.size(); ++i) {
      std::memset(BlockAt(region, here[i]), static_cast<int>(i + 1), kBlockBytes);
    }
  }
  kvxfer::TransferOptions tell;
  tell.notification = "request 7";
  // A real prefill worker is sent the decode worker's regions along with the block table.
  auto transfer = prefill->agent->Write("decode-0",
                                        kvxfer::PagedBlocks{.local = prefill->regions,
                                                            .remote = decode->regions,
                                                            .local_ids = here,
                                                            .remote_ids = there},
                                        tell);
  if (!transfer.ok()) return transfer.status();
  auto told = decode->agent->WaitNotification(std::chrono::seconds(5));
  if (!told.ok()) return told.status();
  for (size_t r = 0; r < decode->regions.size(); ++r) {
    for (size_t i = 0; i < there.size(); ++i) {
      if (std::memcmp(BlockAt(prefill->regions[r], here[i]), BlockAt(decode->regions[r], there[i]),
                      kBlockBytes) != 0) {
        return absl::DataLossError("a block differs");
      }
    }
  }
  if (absl::Status done = transfer->Wait(std::chrono::seconds(5)); !done.ok()) return done;
  const kvxfer::TransferStats stats = transfer->stats();
  std::printf("%s: %llu blocks, %llu bytes in %llu slices over %s\n", told->payload.c_str(),
              static_cast<unsigned long long>(stats.blocks),
              static_cast<unsigned long long>(stats.bytes),
              static_cast<unsigned long long>(stats.slices), stats.path.c_str());
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "paged_write: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
