// ScratchPool: working memory for functions that several threads call at once; each caller has one of its own while it
// works, and what was learnt in it (caches) is there for the next.
//
// Thread-safety: borrow() may be called from several threads at once.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ithaca::tokenizer_internal {

template <class Scratch>
class ScratchPool {
 public:
  // Goes back to the pool when it is destroyed, which must not outlive the pool.
  class Loan {
   public:
    Loan(ScratchPool& pool, std::unique_ptr<Scratch> scratch) : pool_(pool), scratch_(std::move(scratch)) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() { pool_.give_back(std::move(scratch_)); }
    Scratch* operator->() const { return scratch_.get(); }
    Scratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  Loan borrow() {
    std::unique_ptr<Scratch> scratch;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        scratch = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!scratch) scratch = std::make_unique<Scratch>();
    return Loan(*this, std::move(scratch));
  }

 private:
  // What cannot be kept for lack of memory is let go.
  void give_back(std::unique_ptr<Scratch> scratch) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(scratch));
    } catch (...) {
      scratch.reset();
    }
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace ithaca::tokenizer_internal
