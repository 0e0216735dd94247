#include "backend/cuda/device_recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cupti_library.h"
#include "backend/kernel_name.h"
#include "base/error.h"

namespace ithaca::cuda {

namespace {

constexpr CUpti_ExternalCorrelationKind kScopeKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

// What is recorded. External numbers come only with the records of API calls, which are dropped.
constexpr std::array kActivities = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                    CUPTI_ACTIVITY_KIND_RUNTIME,
                                    CUPTI_ACTIVITY_KIND_DRIVER,
                                    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                    CUPTI_ACTIVITY_KIND_MEMCPY,
                                    CUPTI_ACTIVITY_KIND_MEMCPY2,
                                    CUPTI_ACTIVITY_KIND_MEMSET};

// Other ranks of a step end it within moments, unless one has failed.
constexpr auto kLongestWaitForOthers = std::chrono::seconds(5);

int64_t device_now() {
  uint64_t time = 0;
  cupti_library().check(cupti_library().get_timestamp(&time), "cuptiGetTimestamp");
  return static_cast<int64_t>(time);
}

// External numbers: the recording above, its scope below; 0 is no scope.
uint64_t external_number(uint32_t recording, int32_t scope) {
  return scope == kNoScope ? 0 : uint64_t{recording} << 32 | static_cast<uint32_t>(scope + 1);
}

// Something that ran on the device.
struct Work {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t correlation = 0;
  int32_t name = 0;
  TraceTrack track = TraceTrack::compute;
};

struct StreamKey {
  uint32_t device = 0;
  uint32_t stream = 0;
  auto operator<=>(const StreamKey&) const = default;
};

// What all recordings of the process share.
class CuptiSession {
 public:
  static CuptiSession& instance() {
    // CUPTI's threads may still call when the process ends, after objects with static storage are gone: never
    // destroyed.
    static CuptiSession& session = *std::make_unique<CuptiSession>().release();
    return session;
  }

  CuptiSession() : library_(cupti_library()) {
    library_.check(library_.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  }

  // The new recording's number.
  uint32_t start(int device, std::span<const DeviceRecording::RecordedStream> streams) {
    const std::lock_guard starting(starting_);
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      is_first = recordings_.empty();
    }
    if (is_first) enable();
    const std::lock_guard lock(mutex_);
    const uint32_t number = ++last_number_;
    recordings_[number];
    for (const DeviceRecording::RecordedStream& stream : streams) {
      uint32_t id = 0;
      library_.check(library_.get_stream_id(nullptr, reinterpret_cast<CUstream>(stream.handle), 0, &id),
                     "cuptiGetStreamIdEx");
      routes_[{static_cast<uint32_t>(device), id}] = {number, stream.track};
    }
    return number;
  }

  // Adds what the recording has seen to `recorder`, and ends it.
  void finish(uint32_t number, SpanRecorder& recorder) {
    uint32_t flags = 0;
    {
      std::unique_lock lock(mutex_);
      recordings_.at(number).is_finishing = true;
      release_if_all_finish();
      const bool all =
          changed_.wait_for(lock, kLongestWaitForOthers, [&] { return recordings_.at(number).is_released; });
      // What others have not finished comes without times; they have failed, or will find it missing.
      if (!all) flags = CUPTI_ACTIVITY_FLAG_FLUSH_FORCED;
    }
    {
      // Not under mutex_, as the records come while it runs.
      const std::lock_guard flushing(flushing_);
      library_.check(library_.flush_all(flags), "cuptiActivityFlushAll");
    }
    Recording recording;
    {
      const std::lock_guard lock(mutex_);
      recording = std::move(recordings_.at(number));
      for (const Work& work : recording.work) {
        recorder.add(work.track, names_[static_cast<size_t>(work.name)], scope_of(number, work.correlation),
                     static_cast<int64_t>(work.begin), static_cast<int64_t>(work.end));
      }
      recorder.drop(std::exchange(dropped_, 0));
    }
    end(number);
  }

  // Ends a recording, whether it has finished or not.
  void end(uint32_t number) {
    const std::lock_guard starting(starting_);
    bool is_last = false;
    {
      const std::lock_guard lock(mutex_);
      recordings_.erase(number);
      std::erase_if(routes_, [number](const auto& route) { return route.second.recording == number; });
      std::erase_if(scopes_, [number](const auto& entry) { return entry.second >> 32 == number; });
      release_if_all_finish();
      is_last = recordings_.empty();
    }
    if (is_last) disable();
  }

 private:
  struct Route {
    uint32_t recording = 0;
    TraceTrack track = TraceTrack::compute;
  };
  struct Recording {
    std::vector<Work> work;
    bool is_finishing = false;
    bool is_released = false;
  };
  struct alignas(64) RecordBuffer {
    std::array<uint8_t, size_t{4} << 20> bytes;
  };

  void enable() {
    for (const CUpti_ActivityKind kind : kActivities) library_.check(library_.enable(kind), "cuptiActivityEnable");
  }

  void disable() {
    for (const CUpti_ActivityKind kind : kActivities) library_.check(library_.disable(kind), "cuptiActivityDisable");
    // What is still on its way belongs to nobody.
    const std::lock_guard flushing(flushing_);
    library_.check(library_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
    const std::lock_guard lock(mutex_);
    scopes_.clear();
  }

  // With mutex_ held.
  void release_if_all_finish() {
    const bool all = std::all_of(recordings_.begin(), recordings_.end(),
                                 [](const auto& entry) { return entry.second.is_finishing; });
    if (!all) return;
    for (auto& [number, recording] : recordings_) recording.is_released = true;
    changed_.notify_all();
  }

  int32_t scope_of(uint32_t number, uint32_t correlation) const {
    const auto found = scopes_.find(correlation);
    if (found == scopes_.end() || found->second >> 32 != number) return kNoScope;
    return static_cast<int32_t>(found->second & 0xffffffffu) - 1;
  }

  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) noexcept {
    *buffer = nullptr;
    *size = 0;
    *most_records = 0;  // as many as fit
    try {
      CuptiSession& session = instance();
      const std::lock_guard lock(session.buffers_mutex_);
      if (session.idle_buffers_.empty()) session.idle_buffers_.push_back(std::make_unique<RecordBuffer>());
      std::unique_ptr<RecordBuffer> given = std::move(session.idle_buffers_.back());
      session.idle_buffers_.pop_back();
      uint8_t* const bytes = given->bytes.data();
      session.buffers_in_use_[bytes] = std::move(given);
      *buffer = bytes;
      *size = sizeof(RecordBuffer::bytes);
    } catch (...) {  // no memory: CUPTI drops records, and counts them
      *buffer = nullptr;
      *size = 0;
    }
  }

  static void CUPTIAPI take_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*size*/,
                                   size_t valid_bytes) noexcept {
    CuptiSession& session = instance();
    try {
      session.read(buffer, valid_bytes);
    } catch (...) {  // no memory for more
      session.count_dropped(1);
    }
    try {
      const std::lock_guard lock(session.buffers_mutex_);
      const auto found = session.buffers_in_use_.find(buffer);
      if (found == session.buffers_in_use_.end()) return;
      constexpr size_t kMostIdle = 8;
      if (session.idle_buffers_.size() < kMostIdle) session.idle_buffers_.push_back(std::move(found->second));
      session.buffers_in_use_.erase(found);
    } catch (...) {  // the buffer is lost to us, not to the process
    }
  }

  void count_dropped(int64_t count) noexcept {
    const std::lock_guard lock(mutex_);
    dropped_ += count;
  }

  void read(uint8_t* buffer, size_t valid_bytes) {
    size_t dropped = 0;
    if (library_.get_dropped_records(nullptr, 0, &dropped) == CUPTI_SUCCESS && dropped > 0) {
      count_dropped(static_cast<int64_t>(dropped));
    }
    if (valid_bytes == 0) return;
    const std::lock_guard lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (library_.get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) read(*record);
  }

  // With mutex_ held. The first members of these structures have stayed where they are in all versions of CUPTI 13.
  void read(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& link = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
        if (link.externalKind == kScopeKind && link.externalId != 0) scopes_[link.correlationId] = link.externalId;
        return;
      }
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        add({kernel.deviceId, kernel.streamId}, kernel.start, kernel.end, kernel.correlationId,
            kernel.name == nullptr ? "kernel" : kernel.name, true);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        const bool is_to_other_device = copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
        add({copy.deviceId, copy.streamId}, copy.start, copy.end, copy.correlationId, copy_name(copy.copyKind), false,
            is_to_other_device);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record);
        // Ranks fetch what they read: the stream is the receiver's.
        add({copy.dstDeviceId, copy.streamId}, copy.start, copy.end, copy.correlationId,
            copy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP), false, true);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        add({fill.deviceId, fill.streamId}, fill.start, fill.end, fill.correlationId, "memset");
        return;
      }
      default:
        return;  // API calls
    }
  }

  static const char* copy_name(uint8_t kind) {
    switch (kind) {
      case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
        return "memcpy host to device";
      case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
        return "memcpy device to host";
      case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
        return "memcpy device to device";
      case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
        return "memcpy device to other device";
      default:
        return "memcpy";
    }
  }

  void add(const StreamKey& key, uint64_t begin, uint64_t end, uint32_t correlation, const char* name,
           bool is_symbol = false, bool is_to_other_device = false) {
    const auto route = route_of(key, correlation, is_to_other_device);
    if (route == routes_.end()) return;
    const auto recording = recordings_.find(route->second.recording);
    if (recording == recordings_.end()) return;
    if (begin == 0 || end == 0) {  // its times are not known
      ++dropped_;
      return;
    }
    if (static_cast<int64_t>(recording->second.work.size()) >= SpanRecorder::kMostSpans) {
      ++dropped_;
      return;
    }
    recording->second.work.push_back({begin, end, correlation, number_of(name, is_symbol), route->second.track});
  }

  // Copies between devices may be told as work of the other device, or of a stream that nobody has made: they belong to
  // the recording that they were enqueued for, there to the stream of that number, or else to the exchanges.
  std::map<StreamKey, Route>::const_iterator route_of(const StreamKey& key, uint32_t correlation,
                                                      bool is_to_other_device) const {
    const auto direct = routes_.find(key);
    const auto link = scopes_.find(correlation);
    if (link == scopes_.end()) return direct;
    const auto number = static_cast<uint32_t>(link->second >> 32);
    if (direct != routes_.end() && direct->second.recording == number) return direct;
    const auto route_where = [&](const auto& is_wanted) {
      return std::find_if(routes_.begin(), routes_.end(),
                          [&](const auto& entry) { return entry.second.recording == number && is_wanted(entry); });
    };
    const auto of_stream = route_where([&](const auto& entry) { return entry.first.stream == key.stream; });
    if (of_stream != routes_.end() || !is_to_other_device) return of_stream;
    return route_where([](const auto& entry) { return entry.second.track == TraceTrack::communication; });
  }

  int32_t number_of(const char* name, bool is_symbol) {
    const auto found = numbers_.find(std::string_view(name));
    if (found != numbers_.end()) return found->second;
    const auto number = static_cast<int32_t>(names_.size());
    names_.push_back(is_symbol ? kernel_name(name) : std::string(name));
    numbers_.emplace(name, number);
    return number;
  }

  const CuptiLibrary& library_;
  std::mutex starting_;  // of what happens once for all recordings
  std::mutex flushing_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  uint32_t last_number_ = 0;
  std::map<uint32_t, Recording> recordings_;
  std::map<StreamKey, Route> routes_;
  std::unordered_map<uint32_t, uint64_t> scopes_;  // external numbers by correlation
  std::vector<std::string> names_;
  std::map<std::string, int32_t, std::less<>> numbers_;  // by symbol
  int64_t dropped_ = 0;

  std::mutex buffers_mutex_;
  std::vector<std::unique_ptr<RecordBuffer>> idle_buffers_;
  std::map<uint8_t*, std::unique_ptr<RecordBuffer>> buffers_in_use_;
};

}  // namespace

std::string recording_absence_reason() {
  try {
    static_cast<void>(cupti_library());
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

DeviceRecording::DeviceRecording(std::shared_ptr<SpanRecorder> recorder, int device,
                                 std::span<const RecordedStream> streams)
    : recorder_(std::move(recorder)), number_(CuptiSession::instance().start(device, streams)) {
  recorder_->begin(device_now());
}

DeviceRecording::~DeviceRecording() {
  if (is_finished_) return;
  pop_scopes();
  try {
    CuptiSession::instance().end(number_);
  } catch (...) {  // another failure is on its way already
  }
}

void DeviceRecording::begin_scope(const ScopeName& name) {
  const int32_t scope = recorder_->open_scope(name, device_now());
  const CuptiLibrary& library = cupti_library();
  library.check(library.push_external_id(kScopeKind, external_number(number_, scope)),
                "cuptiActivityPushExternalCorrelationId");
  ++pushed_;
}

void DeviceRecording::end_scope() noexcept {
  if (pushed_ == 0) return;  // it was opened before
  uint64_t last = 0;
  static_cast<void>(cupti_library().pop_external_id(kScopeKind, &last));
  --pushed_;
  uint64_t time = 0;
  static_cast<void>(cupti_library().get_timestamp(&time));
  recorder_->close_scope(static_cast<int64_t>(time));
}

uint64_t DeviceRecording::launch_scope() const {
  return external_number(number_, recorder_->current_scope());
}

void DeviceRecording::pop_scopes() noexcept {
  uint64_t last = 0;
  for (; pushed_ > 0; --pushed_) static_cast<void>(cupti_library().pop_external_id(kScopeKind, &last));
}

void DeviceRecording::finish() {
  recorder_->finish(device_now());
  pop_scopes();
  CuptiSession::instance().finish(number_, *recorder_);
  is_finished_ = true;
}

LaunchScope::LaunchScope(uint64_t scope) : is_pushed_(scope != 0) {
  if (is_pushed_) static_cast<void>(cupti_library().push_external_id(kScopeKind, scope));
}

LaunchScope::~LaunchScope() {
  uint64_t last = 0;
  if (is_pushed_) static_cast<void>(cupti_library().pop_external_id(kScopeKind, &last));
}

}  // namespace ithaca::cuda
