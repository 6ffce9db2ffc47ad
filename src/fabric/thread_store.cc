#include <condition_variable>
#include <map>
#include <mutex>

#include "fmt/format.h"
#include "tide/error.h"
#include "tide/session.h"

namespace tide {
namespace {

class ThreadStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    {
      const std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline, [&] { return values_.contains(key); })) {
      throw Error(ErrorCode::timeout, fmt::format("nobody set store key '{}' within {} ms: start every rank of the job",
                                                  key, deadline.count()));
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::shared_ptr<Store> make_thread_store() { return std::make_shared<ThreadStore>(); }

}  // namespace tide
