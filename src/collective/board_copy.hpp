// The copy of a board that lies in the peer folder, for `sidestep ps`. The board itself is sealed memory, which ranks hand
// to each other: whatever happens to a file (cut short, removed, its disk full) reaches none of them.
#pragma once

#include <string>

#include <sidestep/result.hpp>
#include "driver/fd.hpp"

namespace sidestep::collective {

struct BoardFile;

class BoardCopy {
public:
    // A new one, by rank 0. What lay at the path is removed first. For this user alone.
    static Result<BoardCopy> create(const std::string& path);
    // Of another rank; where there is none, nothing of that rank is shown.
    static BoardCopy open(const std::string& path);

    // A lock that lasts as long as this object and its process: by it one knows of a rank of another pid namespace
    // whether it lives. False where the file system has no locks.
    bool lock(unsigned rank) const;

    // What the rank has written on the board. Any thread.
    void write(const BoardFile& board, unsigned rank) const;
    // That the rank has left, and nothing else. Any thread.
    void write_left(unsigned rank) const;

    int descriptor() const { return fd_ ? fd_.get() : -1; }
    // Unless another file lies there by now.
    void remove() const;

private:
    BoardCopy(driver::Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
    driver::Fd fd_;
    std::string path_;
};

// Whether a descriptor other than `copy` holds the lock of the rank.
bool is_locked(int copy, unsigned rank);

}  // namespace sidestep::collective
