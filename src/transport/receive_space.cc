#include "src/transport/receive_space.h"

#include <utility>

namespace kvxfer::net {

ReceiveSpace::User::~User() {
  if (space_ == nullptr) return;
  std::erase(space_->users_, this);
  if (space_->last_ == this) space_->last_ = nullptr;
}

ReceiveSpace::~ReceiveSpace() {
  for (User* user : users_) user->space_ = nullptr;
}

void ReceiveSpace::BeginTurn() {
  for (User* user : users_) {
    user->space_ = nullptr;
    user->MoveOut();
  }
  users_.clear();
  kept_.clear();
  if (chunks_.size() > kMaxIdleChunks) chunks_.resize(kMaxIdleChunks);
  chunk_ = used_ = 0;
  last_ = nullptr;
}

std::span<std::byte> ReceiveSpace::Lend(const User* user) {
  // A user that receives many times in a turn stays within what the processor has in its cache.
  if (user == last_) used_ -= std::exchange(last_used_, 0);
  if (kChunkBytes - used_ < kReadBytes) {
    ++chunk_;
    used_ = 0;
    last_ = nullptr;
  }
  if (chunk_ == chunks_.size()) {
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kChunkBytes));
  }
  return std::span(chunks_[chunk_].get() + used_, kReadBytes);
}

void ReceiveSpace::Use(User* user, size_t bytes) {
  used_ += bytes;
  last_used_ = bytes;
  last_ = user;
  if (std::exchange(user->space_, this) == nullptr) users_.push_back(user);
}

}  // namespace kvxfer::net
