# The mutants: each breaks one rule of the completion protocol. Sourced by run.sh.
#   mutant <name> <file> <text> <replacement> [<text> <replacement>]...
# Each text must occur exactly once in the file.

tracker=src/core/protocol/arrival_tracker.cc
pool=src/core/protocol/slot_pool.cc
book=src/core/protocol/lane_book.cc
send=src/core/protocol/send_book.cc
table=src/core/protocol/slot_table.cc
channel=src/core/protocol/reliable_channel.cc
rails=src/core/protocol/rail_fences.cc
tracks=src/core/protocol/send_tracker.cc
handshake=src/core/protocol/handshake.cc
bucket=src/core/base/leaky_bucket.h
transitions=src/core/protocol/transitions.h
ends=src/core/protocol/send_tracker_end.cc
credit=src/core/protocol/send_credit.h
supply=src/core/protocol/slot_supply.h
suspects=src/core/protocol/suspect_ops.h
end=src/core/protocol/send_end.h
end_rule=src/core/protocol/send_end.cc
one=src/core/protocol/send_transfer.h
one_cc=src/core/protocol/send_transfer.cc
session=src/core/protocol/session.cc
table_of_session=src/core/protocol/session.h
target=src/core/protocol/target_session.cc
watch=src/core/protocol/frame_watch.cc
watch_look=src/core/protocol/frame_watch.h
peer_watch=src/core/protocol/peer_watch.cc
peer_pace=src/core/protocol/peer_watch.h

mutant "no drain before DISCARDED is answered" $tracker \
  'return Annotate(s, "DISCARD");
  }
  return absl::OkStatus();' 'return Annotate(s, "DISCARD");
  }
  return OnLanesDrained(frame.transfer);'
mutant "slot used again before FREE" $pool \
  'free_.pop_back();' 'free_.back().generation = NextGeneration(ref.generation);'
mutant "released before the last arrival" $tracker \
  'slot->arrivals == lane.expected' 'slot->arrivals + 1 >= lane.expected'
mutant "skip not recorded" $tracker \
  'if (frame.order == 0) return' 'if (frame.order >= 0) return'
mutant "frames not replayed after a reconnect" $channel '  next_ = 0;' ''
mutant "duplicate control frame applied twice" $channel \
  'if (sequence <= received_) return absl::OkStatus();' \
  'if (sequence <= received_) return take({.type = envelope.type, .body = envelope.body});'
mutant "early control frame dropped" $channel \
  'if (!fresh) return absl::OkStatus();' 'ahead_.erase(at);
    if (!fresh || bytes > 0) return absl::OkStatus();'
mutant "ack not told again after a reconnect" $channel \
  '  next_ = 0;
  ack_sent_ = 0;' '  next_ = 0;'
mutant "channel: large bodies are not acknowledged soon" $channel \
  '  bytes_since_ack_ += envelope.body.size();' ''
mutant "channel: bodies that waited are not acknowledged soon" $channel \
  '    bytes_since_ack_ += frame.body.size();' ''
mutant "channel: acknowledged bytes count as kept" $channel \
  '    kept_bytes_ -= message.size();' ''
mutant "early immediates not counted" $tracker \
  '  ++(*slot)->arrivals;' '  if (lane_of_slot_.contains(ref.slot)) ++(*slot)->arrivals;'
mutant "abort of a delivered transfer answered not delivered" $tracker \
  '.delivered = true' '.delivered = false'
mutant "abort answered before its fence" $tracker \
  'actions_.fence.push_back(frame.transfer);' \
  'actions_.fence.push_back(frame.transfer);
  actions_.released.aborted.push_back({.transfer = frame.transfer, .delivered = false});' \
  'transfers_.erase(it);
  actions_.released.aborted.push_back({.transfer = transfer, .delivered = false});' \
  'transfers_.erase(it);'
mutant "aborted lanes not freed" $tracker \
  'for (const Lane& lane : it->second.lanes) FreeSlot(lane.ref);' ''
mutant "aborted transfer still becomes whole" $tracker \
  'return transfer.phase == Phase::kOpen && transfer.missing' 'return transfer.missing' \
  'if (transfer.phase != Phase::kOpen || lane.draining)' 'if (lane.draining)'
mutant "ABORT forgets which lanes were exact" $tracker \
  'if (absl::Status s = AddAbortedLanes(frame, transfer); !s.ok())' \
  'std::erase_if(transfer.lanes, [](const Lane& lane) { return lane.exact; });
  if (absl::Status s = AddAbortedLanes(frame, transfer); !s.ok())'
mutant "generation not checked" $tracker \
  'return slot.generation == ref.generation;' 'return slot.generation < 5000 || ref.slot > 0;'
mutant "generation does not move on" $tracker \
  'slot->generation = NextGeneration(slot->generation);' ''
mutant "AMEND ignored" $tracker \
  '  transfer.missing -= frame.lanes.size();' '  return absl::OkStatus();'
mutant "AMEND may bring more lanes than are missing" $tracker \
  'frame.lanes.size() > transfer.missing' 'frame.lanes.size() > 1000'
mutant "discarded lane not missed" $tracker '    ++it->second.missing;' ''
mutant "discarded lane still counts" $tracker ' || lane.draining) return' ') return'
mutant "discarded before OPEN is remembered for ever" $tracker \
  'transfers_.erase(it);  // a later' '// a later'
mutant "order ignored" $tracker \
  'if (order != 0) return Record' 'if (order != 0 && !past.deliver()) return Record'
mutant "skipped numbers not merged" $tracker \
  'if (!at->second.deliver()) {' 'if (at->second.last == 0) {'
mutant "lane without posts never closed" $book \
  'lane.immediates > 0;' 'true;'
mutant "other lanes never closed where rails keep order" $book \
  '? lane.closed :' '? true :'
mutant "declared one too few" $book \
  'if (last || !rail_keeps_order) ++' 'if (last) ++'
mutant "discarded lane stays in the book" $book '  lane = {};' ''
mutant "freed lane discarded" $book '!lane.open || lane.freed' '!lane.open'
mutant "a lane goes again before the target has let go of it" $send \
  '  if (!pool.Reserve()) {' '  if (pool.available() > 0 && !pool.Reserve()) {'
mutant "a lane with nothing to carry is forgotten, though OPEN named it" $send \
  '(!lane.named && lane.slices.empty())' 'lane.slices.empty()'
mutant "what a lane had still to post is forgotten with its rail" $send \
  '    again.lane.slices.Add(again.slices.slices());' ''
mutant "a slice that goes again is taken for the last" $send \
  'return fresh_ ? again_.Front(cut_) == kNoSlice :' 'return fresh_ ? true :'
mutant "slots kept back for the first book stay kept" $send \
  'for (; reserved_ > 0; --reserved_) pool.Unreserve();' ''
mutant "AMEND names a lane twice" $send \
  'std::exchange(again.told, true)' 'again.told'
mutant "ABORT forgets the lanes that go again" $send \
  '      slots.push_back(again.lane.slot);
    }
  }
  return slots;' '    }
  }
  return slots;'
mutant "a kept slot is given to others" $pool \
  'if (available() == 0)' 'if (free_.empty())' \
  '  --reserved_;' '  if (free_.empty()) return {};
  --reserved_;'
mutant "next owner starts where a slot ended" $table \
  'NextGeneration(std::max_element(slots.begin(), slots.end(), higher)->generation);' \
  'std::max_element(slots.begin(), slots.end(), higher)->generation;' \
  'while (std::any_of(slots.begin(), slots.end(), has_next))' \
  'while (slots.empty() && std::any_of(slots.begin(), slots.end(), has_next))'
mutant "a rail takes an event that its state does not know" $transitions \
  'one.from == from && ' ''
mutant "a rail is built again before its fence is answered" $rails \
  'state = *to;' 'state = *to == State::kFencing ? State::kReopening : *to;'
mutant "a suspected rail takes data" $rails \
  'up_ = state == State::kUp ?' 'up_ = state <= State::kSuspected ?'
mutant "a rail whose last op has failed stays suspected" $rails \
  'one.until = one.ops == 0 ? now + kExplainWithin : Time::max();' 'one.until = Time::max();'
mutant "a rail is cleared while its ops are under way" $rails \
  'one.until = one.ops == 0 ? now + kExplainWithin : Time::max();' \
  'one.until = now + kExplainWithin;'
mutant "the last op of a suspected rail starts no clock" $rails \
  '  if (one.state == State::kSuspected && one.ops == 0) one.until = now + kExplainWithin;' ''
mutant "the fence of a rail is waited for for ever" $rails \
  'return rail.since + answer_within_;' 'return Time::max();'
mutant "the time for the fence of a rail begins with the suspicion" $rails \
  '.since = now;
  rails_[rail].why = why;' '.why = why;'
mutant "any error makes a rail suspected" $rails \
  '  if (!EndsAsItsRail(why)) return false;' ''
mutant "an op that fails after its rail waits to be explained" $rails \
  'return rail < rails_.size() && rails_[rail].state == State::kSuspected;' \
  'return rail < rails_.size();'
mutant "a rail is fenced that was not to be" $rails \
  'if (Apply(rail, Event::kFenced)) return' 'if (Apply(rail, Event::kFenced) || up_ != all_) return'
mutant "the backend brings up a rail that it was not asked to build" $rails \
  'if (Apply(rail, Event::kUp)) return true;' \
  'if (Apply(rail, Event::kUp) || rails_[rail].state == State::kFencing) return true;'
mutant "the timer of one rail hides that of another" $rails \
  'next = std::min(next, Limit(rail));' 'next = Limit(rail);'

mutant "OPEN names lanes that a DISCARD takes back" $tracks \
  '  if (book.awaits_discarded()) return;' ''
mutant "OPEN before what the initiator copies is there" $tracks \
  '  if (!book.counted() && !copied) return;' ''
mutant "AMEND forgotten" $tracks \
  'if (!amend.lanes.empty()) channel_->Push' 'if (amend.lanes.size() > 9) channel_->Push'
mutant "done while ops are in flight" $tracks \
  '  if (transfer.ops() > 0) {
    if (transfer.state() == SendState::kOpened)' '  if (transfer.ops() > 99) {
    if (transfer.state() == SendState::kOpened)'
mutant "done without the arrival" $tracks \
  'transfer.opened() ? transfer.arrived()' 'transfer.opened() ? transfer.opened()'
mutant "a transfer with a number is not told of" $tracks \
  'transfer.counted() || transfer.order() != 0 ||' 'transfer.counted() ||'
mutant "posted while an op is not explained" $one \
  'sending() && suspects_.empty() &&' 'sending() &&'
mutant "the target is told with lanes left to close" $one_cc \
  'book_.posted() && !book_.NextToClose().has_value();' 'book_.posted();'
mutant "credit is not taken" $credit \
  '    ++used_.notifications;
    used_.bytes += notification->size();' ''
mutant "credit shrinks" $credit \
  'granted_.bytes = std::max(granted_.bytes, credit.bytes);' 'granted_.bytes = credit.bytes;'
mutant "slots are asked for again and again" $supply \
  'if (std::exchange(requested_, true)) return;' ''
mutant "a grant does not end the asking" $supply \
  '    requested_ = false;
    return pool_' '    return pool_'
mutant "a held transfer begins by itself" $one_cc \
  '!sending() || request_.held' '!sending()'
mutant "read before the lease" $one_cc \
  '    state_ = SendState::kLeasing;' '    state_ = SendState::kSending;'
mutant "the lease is not confirmed" $tracks \
  'if (transfer.request().lease == nullptr) return true;' 'return true;'
mutant "the lease is confirmed before all is read" $tracks \
  '  if (transfer.ops() > 0 || !transfer.suspects().empty()) return false;' ''
mutant "a lost session leaves the delivery certain" $tracks \
  '    transfer.end().LoseAnswer();' ''
mutant "what was told before the session was lost is no orphan" $tracks \
  'if (lands) Act(Action::Kind::kOrphan, transfer);' ''
mutant "a new session keeps the slots of the old one" $tracks \
  '  slots_.Clear();' ''
mutant "a new session goes on with the old numbers" $tracks \
  '  last_order_ = 0;' ''
mutant "orphans stay orphans" $tracks \
  'if (transfer.state() == SendState::kOrphaned) Set(transfer, SendState::kStopping);' ''
mutant "what goes again after OPEN is not amended" $tracks \
  'transfer.opened() ? SendState::kAmending : SendState::kSending' 'SendState::kSending'
mutant "an op that failed alone ends nothing" $ends \
  '    End(transfer, TransferState::kFailed, *why, EndCause::kStopped, now);' ''
mutant "the rail of another connection clears an op" $ends \
  '    if (transfer.request().link != link) return;
    const auto why' '    const auto why'
mutant "a failed op is never explained" $suspects \
  'std::erase_if(ops_, [&](const Op& op) { return op.rail == rail; });' ''
mutant "what was not counted does not go again" $ends \
  '    transfer.book().Again(slice);
    SendAgain(transfer);' ''
mutant "a slice of a lane that was taken back stays prepared" $ends \
  'prepared->book != SendBook::kFirst' 'transfer.ops() > 99'
mutant "lanes of an ending transfer are discarded too" $ends \
  'if (transfer.request().link != link || transfer.ending() || transfer.arrived()) return;' \
  'if (transfer.request().link != link || transfer.arrived()) return;'
mutant "a lost connection fails what only waits" $ends \
  'if (!only_waits) End(' 'End('
mutant "a lost connection fails nothing" $ends \
  'if (!only_waits) End(' 'if (transfer.ops() > 99) End('
mutant "slots are freed behind the transfer's back" $ends \
  'holder->book().OnFreed(ref);' '(void)holder;'
mutant "arrival before OPEN believed" $ends \
  '!transfer->opened() || ' ''
mutant "arrival believed while a lane is missing" $ends \
  '||
      transfer->state() == SendState::kAmending) {' ') {'
mutant "arrival ends what is ending" $ends \
  'if (!transfer->ending()) Advance(*transfer);' 'Tell(*transfer, TransferState::kDone, {}, Delivery::kDelivered, false);'
mutant "an answer to no ABORT believed" $ends \
  'transfer == nullptr || !transfer->asks()' 'transfer == nullptr || transfer->ops() > 99'
mutant "ABORT answered as delivered ends as cancelled" $end \
  'state_ = refused.ok() ? TransferState::kDone : TransferState::kFailed;' ''
mutant "credit of an aborted notification is lost" $ends \
  '  } else {
    credit_.Return(transfer->request().notification);
  }' '  }'
mutant "quiet is not told" $ends \
  '    if (transfer->ops() == 0) Act(Action::Kind::kQuiet, *transfer);' ''
mutant "a second end makes more time" $end \
  'by_ = std::min(by_, by);' 'by_ = by;'
mutant "an end has all the time of its deadline" $end_rule \
  'return std::min(deadline, now + grace);' 'return deadline;'
mutant "the target is not asked about what it knows" $ends \
  'transfer.opened() || transfer.order() != 0 || !abort.slots.empty() ||' \
  'transfer.order() != 0 ||'
mutant "a number is not taken back" $ends \
  'transfer.opened() || transfer.order() != 0 || !abort.slots.empty() ||' \
  'transfer.opened() || !abort.slots.empty() ||'
mutant "a lent buffer is given back while the target may send out of it" $ends \
  '(transfer.request().from_lent && transfer.slices() > 0)' 'false'
mutant "a lent buffer is given back at the deadline, without an answer" $ends \
  'asked && transfer.request().from_lent);' 'false);'
mutant "quiet before the target has answered" $ends \
  'if (transfer.state() == SendState::kMoving) Act' 'if (transfer.ended()) Act'
mutant "quiet while ops are in flight" $ends \
  'if (transfer->ops() == 0) Act' 'Act'
mutant "told without the target's word before time is up" $ends \
  '  if (asked && !late) return;' ''
mutant "told while ops are in flight" $ends \
  '  if (transfer.ops() > 0 && transfer.end().ops_in_time(now)) return;' ''
mutant "ops that a device keeps are waited for without end" $ends \
  'std::max(by, now) + kOpsReturnWithin' 'Time::max()'
mutant "quarantine forgotten" $ends \
  'unheard || transfer.ops() > 0,' 'transfer.ops() > 0,'
mutant "an unknown delivery told as none" $ends \
  'return unknown && transfer.opened() ?' 'return unknown && transfer.ops() > 99 ?'
mutant "the owner of a lease is not told of a read given up" $ends \
  '  if (transfer.request().lease != nullptr && transfer.state()' '  if (transfer.ops() > 99 && transfer.state()'
mutant "staged ops are waited for" $ends \
  '    return Act(Action::Kind::kAbandon, transfer);' ''

mutant "session: another incarnation may answer the hello" $session \
  '  if (ack.target != target) {' '  if (ack.target.IsZero()) {'
mutant "session: a hello has two answers" $session \
  '  if (answered_) return absl' '  if (answered_ && due_ > 9) return absl'
mutant "session: pages of regions are not waited for" $session \
  '  due_ = ack.last_region;' ''
mutant "session: the answer has a version that nobody offered" $session \
  '  if (ack.version < kMinProtocolVersion || ' '  if ('
mutant "session: pages of another incarnation count" $session \
  'if (page.target != target) return' 'if (page.target.IsZero()) return'
mutant "session: a page counts one region too few" $session \
  'page.last} - page.first + 1;' 'page.last} - page.first;'
mutant "session: up before the answer to the hello" $table_of_session \
  'return answered_ && listed_' 'return listed_'
mutant "session: a peer that means a session that is over is taken" $session \
  'if (hello.peer_session != 0 && hello.peer_session != number_) return' 'if (hello.session == 0) return'
mutant "session: a peer that has forgotten the session goes on with it" $session \
  'if (peer_number_ != 0 && peer_number_ != hello.session) return' 'if (hello.session == 0) return'
mutant "session: a hello that crosses one of this side ends the session" $session \
  'if (hello.peer_session != 0 && hello.peer_session != number_) return' \
  'if (hello.peer_session != number_) return'
mutant "session: an answer of another session is taken" $session \
  'if (peer_number_ != 0 && peer_number_ != ack.session) {' 'if (ack.session == 0) {'
mutant "session: a session begins while the one before is ending" $session \
  'if (state_ == State::kEnding) return Meaning::kEnding;' \
  'if (state_ == State::kEnding) return Meaning::kTaken;'
mutant "session: the next session begins while connections are up" $table_of_session \
  'return state_ == State::kEnding && links_ == 0;' 'return state_ == State::kEnding;'
mutant "session: nothing is sent again over the first connection" $session \
  '  if (links_++ == 0) channel_.Rewind();' '  ++links_;'
mutant "session: a further connection sends everything again" $session \
  '  if (links_++ == 0) channel_.Rewind();' '  ++links_;
  channel_.Rewind();'
mutant "session: what a lost connection had taken is not sent again" $session \
  '  channel_.Rewind();
  if (--links_ > 0) return;' '  if (--links_ > 0) return;'
mutant "session: unlinked while another connection is up" $session \
  '  if (--links_ > 0) return;' '  --links_;'
mutant "session: the time without a connection is not known" $session \
  'if (state_ == State::kUnlinked) unlinked_ = now;' \
  'if (state_ == State::kUnlinked && number_ == 0) unlinked_ = now;'
mutant "session: what was posted until the end belongs to the next" $session \
  '  if (state_ == State::kLinked) unlinked_ = now;
' ''
mutant "session: unlinked though a connection is up" $session \
  '  unlinked_ = Time{};' ''
mutant "session: a target that acknowledges nothing is put up with" $session \
  'if (channel_.kept() <= ReliableChannel::kMaxKept) return' 'if (channel_.kept() > 0) return'
mutant "session: given up though nothing waits" $session \
  'return waits && state_' 'return state_'
mutant "session: given up while a connection is up" $session \
  'return waits && state_ == State::kUnlinked ?' 'return waits ?'
mutant "session: given up again and again" $session \
  'return waits && state_ == State::kUnlinked ?' 'return waits && unlinked_ != Time{} ?'
mutant "session: the next session has the same number" $session '  ++number_;' ''
mutant "session: the next session replays the one before" $session \
  '  channel_ = ReliableChannel();' ''
mutant "session: the next session keeps the peer's number" $session '  peer_number_ = 0;
' ''
mutant "session: a renewed session is still known" $table_of_session \
  '{State::kEnding, Event::kRenew, State::kNew}' '{State::kEnding, Event::kRenew, State::kUnlinked}'
mutant "session: what was posted with the loss belongs to the next" $table_of_session \
  'return posted <= unlinked_;' 'return posted < unlinked_;'
mutant "session: a target that forgot the session is not asked again soon" $session \
  '.again = true, .forgotten = proved' '.forgotten = proved'
mutant "session: a stranger makes the session forgotten" $session \
  '.again = true, .forgotten = proved' '.again = true, .forgotten = true'
mutant "session: a target that closes has forgotten the session" $session \
  '.again = true};' '.again = true, .forgotten = true};'
mutant "session: a restarted target is not known to be another" $session \
  '          .restarted = true};' '          };'

mutant "handshake: the proof is not verified" $handshake \
  'if (!Verify(dialled_.key, Signed(Role::kDials), proof->signature)) {' 'if (dialled_.link == 0) {'
mutant "handshake: the signature of the side that accepts is not verified" $handshake \
  'if (!Verify(accepted_.key, Signed(Role::kAccepts), signature)) {' 'if (accepted_.link != 0) {'
mutant "handshake: anybody dials with a key of its own" $handshake \
  'if (auto status = CheckOwner(dialled_.key, hello_.initiator); !status.ok()) return status;' ''
mutant "handshake: anybody answers with a key of its own" $handshake \
  'if (auto status = CheckOwner(accepted_.key, hello_.target); !status.ok()) return status;' ''
mutant "handshake: half of an incarnation is compared" $handshake \
  'if (*owner == said) return' 'if (owner->bytes[0] % 2 == said.bytes[0] % 2) return'
mutant "handshake: a signature stands for both roles" $handshake \
  'covered.Int("role", static_cast<uint8_t>(role));' \
  'covered.Int("role", static_cast<uint8_t>(role == Role::kDials ? 1 : 1));'
mutant "handshake: the hello is not signed" $handshake '  add(hello_message_);' ''
mutant "handshake: the envelope of the hello is not signed" $handshake \
  '  add(hello_message_);' '  add(std::string_view(hello_message_).substr(kEnvelopeBytes));'
mutant "handshake: the nonce of the side that dials is not signed" $handshake \
  '  add(Encode(dialled_));' '  add(Encode(KeyFrame{.link = dialled_.link, .key = dialled_.key}));'
mutant "handshake: the nonce of the side that accepts is not signed" $handshake \
  '  add(Encode(accepted_));' '  add(Encode(KeyFrame{.key = accepted_.key}));'
mutant "handshake: the number of the link is not signed" $handshake \
  '  add(Encode(dialled_));' '  add(Encode(KeyFrame{.key = dialled_.key, .nonce = dialled_.nonce}));'
mutant "handshake: the backend is not signed" $handshake '  add(side_.backend);' ''
mutant "handshake: the binding is not signed" $handshake '  add(side_.binding);' ''
mutant "handshake: parts are signed without their lengths" $handshake \
  'covered.Text("part", part, 0, 0);' 'covered.Put(part.data(), part.size());'
mutant "handshake: a proof comes before the key" $handshake \
  '{State::kAnswered, FrameType::kProof, State::kProved}' \
  '{State::kHasHello, FrameType::kProof, State::kProved}'
mutant "handshake: the key comes twice" $handshake \
  'state_ = *to;
  return state_ == State::kAnswered' 'if (envelope.type != FrameType::kKey || state_ != State::kOpen) state_ = *to;
  return state_ == State::kAnswered'
mutant "handshake: it goes on after a failure" $handshake \
  'if (!answer.ok()) state_ = State::kFailed;' ''
mutant "handshake: a hello of any length" $handshake \
  'if (message.size() > kMaxMessageBytes) {' 'if (message.size() > 8 * kMaxMessageBytes) {'
mutant "handshake: a key may have a number" $handshake \
  'if (envelope.sequence != 0 || (' 'if ((envelope.sequence != 0 && envelope.ack != 0) || ('
mutant "handshake: a key may acknowledge" $handshake \
  'envelope.type != FrameType::kHello && envelope.ack != 0' 'envelope.type == FrameType::kProof && envelope.ack != 0'
mutant "handshake: an older version is taken" $handshake \
  'CommonVersion(hello_.min_version, hello_.max_version, kMinProtocolVersion,' \
  'CommonVersion(hello_.min_version, hello_.max_version, 1,'
mutant "handshake: a hello for another incarnation is taken" $handshake \
  'if (hello_.target != side_.incarnation) {' 'if (hello_.target.IsZero()) {'
mutant "handshake: an agent connects to itself" $handshake \
  'if (hello_.initiator == side_.incarnation) {' 'if (hello_.initiator.IsZero()) {'
mutant "handshake: a method of authentication that nobody knows" $handshake \
  'if (std::ranges::find(hello_.auth, AuthMethod::kNone) == hello_.auth.end()) {' \
  'if (hello_.auth.empty()) {'
mutant "handshake: a key of the wrong side is taken" $handshake \
  'if (key->link == 0 || !key->signature.empty()) {' 'if (key->link == 0) {'
mutant "handshake: a link without a number" $handshake \
  'if (key->link == 0 || !key->signature.empty()) {' 'if (!key->signature.empty()) {'
mutant "handshake: the side that accepts numbers the link" $handshake \
  'if (key->link != 0 || key->signature' 'if (key->signature'
mutant "handshake budget: none" $bucket \
  'if (empty_at - now > (burst - 1) * every) return false;' ''
mutant "handshake budget: what is refused costs budget" $bucket \
  'if (empty_at - now > (burst - 1) * every) return false;
    empty_at_ = empty_at + every;
    return true;' 'empty_at_ = empty_at + every;
    return empty_at - now <= (burst - 1) * every;'
mutant "handshake budget: it is saved for ever" $bucket \
  'std::max(empty_at_, now)' 'empty_at_'
mutant "an abort is answered by the first link that is quiet" $target \
  'if (!it->second.empty()) return absl::OkStatus();
  fencing_.erase(it);' 'fencing_.erase(it);'
mutant "a link that joins is not asked" $target \
  'asked_.push_back({.link = link, .scope = {.transfer = transfer}});' ';'
mutant "a link that joins is not waited for" $target \
  'waiting.insert(link);' ';'
mutant "a closing link is not waited for" $target \
  'waiting.insert(number);' 'if (!link.closing) waiting.insert(number);'
mutant "a closing link is asked" $target \
  'if (!link.closing) asked_.push_back({.link = number' 'asked_.push_back({.link = number'
mutant "a link that is down is waited for" $target \
  'if (links.contains(link)) waiting.push_back(transfer);' ';'
mutant "fences of a link that is down are begun" $target \
  'std::erase_if(asked_, [&](const Fence& fence) { return fence.link == link; });' ';'
mutant "what a failed rail still brings is not waited for" $target \
  'if (!FencesRails(it->second)) return LinkIsQuiet(link, transfer);
  it->second.waiting.push_back(transfer);
  return absl::OkStatus();' 'return LinkIsQuiet(link, transfer);'
mutant "the first rail that is fenced stands for all" $target \
  'if (FencesRails(its)) return status;' ';'
mutant "transfers that waited for a rail are forgotten" $target \
  'status.Update(LinkIsQuiet(link, transfer));
  }
  return status;
}

bool' ';
  }
  return status;
}

bool'
mutant "a rail may be fenced twice" $target \
  ' || states[rail] != RailState::kUp' ''
mutant "the initiator is told of a rail before it is fenced" $target \
  'std::ranges::find(rails, RailState::kFenced)' 'std::ranges::find_if(rails, [](RailState one) { return one != RailState::kUp; })'
mutant "the initiator is told of a fenced rail again and again" $target \
  'links_.at(link).rails[rail] = RailState::kUp;' ';'
mutant "a fenced rail is told of over a closing link" $target \
  'if (it == links_.end() || it->second.closing) return std::nullopt;' 'if (it == links_.end()) return std::nullopt;'
mutant "DISCARD before any rail was fenced" $target \
  'if (!rails_failed_) {' 'if (false) {'
mutant "discarded lanes are never drained" $target \
  'return status.ok() ? tracker_.OnLanesDrained(frame.transfer) : status;' 'return status;'
mutant "notifications without credit" $target \
  'given.notifications + tracker_.held_notifications() > credit_.notifications ||' ''
mutant "bytes of notifications without credit" $target \
  '||
      given.bytes + tracker_.held_bytes() > credit_.bytes' ''
mutant "any number of transfers" $target \
  'tracker_.active() > limits_.transfers ||' ''
mutant "credit is told with each notification" $target \
  '(limits_.notifications - 1) / 4 ||' '0 ||'
mutant "credit of bytes is never told" $target \
  ' ||
                   now.bytes - credit_.bytes > CreditByteStep(limits_.notification_bytes)' ''
mutant "a frame is asked about at once" $watch \
  'pinged_ = Time{};
    return Step::kNone;' 'pinged_ = now;
    return Step::kPing;'
mutant "a link is asked at every look" $watch 'if (pinged_ == Time{}) {' 'if (carrier.owes || pinged_ == Time{}) {'
mutant "a frame is not sent again to a link that answers" $watch \
  'if (!carrier.owes) return Step::kSendAgain;' ''
mutant "a link has no time to answer" $watch 'now - pinged_ >= kAnswersWithin' 'now > pinged_'
mutant "a link is avoided again and again" $watch 'late && !carrier.avoided' 'late'
mutant "looked at for ever where nobody answers" $watch_look \
  'carrier.owes && carrier.avoided ? Time::max() : next_' 'next_'
mutant "the time in which this side slept is the peer's silence" $peer_watch \
  'late ? std::min(passed, pace_.heartbeat / 2) : passed' 'late ? passed : passed'
mutant "a peer that speaks is silent" $peer_watch \
  'if (peer.heard > asked_) asked_ = Time{};' ''
mutant "a silent peer is looked at only when it is pinged" $peer_watch \
  'due_ = std::min(due_, now + Tolerated() - silence_);' ';'
mutant "a heartbeat before the ping is forgotten" $peer_watch \
  'pace_.suspect_after - pace_.heartbeat - pace_.heartbeat / 10' 'pace_.suspect_after'
mutant "a long heartbeat loses the connection" $peer_pace \
  'std::min<Duration>(pace.heartbeat, kIdlePing)' 'pace.heartbeat'
mutant "an old ping is a reason" $peer_pace \
  'if (due_ == Time::max()) asked_ = Time{};' ''
