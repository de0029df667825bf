package block

import (
	"errors"
	"fmt"
	"time"
)

// ErrFull reports that the region has no room and is at its maximum size. The
// error is a *FullError.
var ErrFull = errors.New("block: region is full")

// FullError reports how much memory was asked for, and how the region's memory is used.
type FullError struct {
	Bytes  uint64 // needed in one piece
	Memory Memory
	// Wait is how long it takes at most until all memory that is in quarantine now is free
	// for any use.
	Wait time.Duration
}

func (e *FullError) Error() string {
	m := e.Memory
	text := fmt.Sprintf("%v: no %d bytes in one piece (limit %d bytes, of which %d in use, %d in quarantine, %d free)",
		ErrFull, e.Bytes, m.Limit, m.Used, m.Quarantined, m.Free)
	if m.Quarantined > 0 {
		text += fmt.Sprintf("; what is in quarantine is free in at most %v", (e.Wait + time.Second - 1).Truncate(time.Second))
	}
	return text
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// Memory is the use of a region's memory, in bytes.
type Memory struct {
	Limit       uint64 // that the region may grow to
	Mapped      uint64 // that it has
	Used        uint64 // of it: blocks in use, free blocks that lie between them, and memory that is never freed
	Quarantined uint64 // of it: pages whose blocks are all free, which serve only blocks of the same size for now
	Free        uint64 // of it: for any use
}

// Memory returns a snapshot.
func (a *Arena) Memory() Memory {
	a.pages.mu.Lock()
	defer a.pages.mu.Unlock()
	return a.pages.memory()
}

func (h *pageHeap) memory() Memory {
	m := Memory{
		Limit: h.region.MaxBytes(), Mapped: h.region.Size(),
		Free: h.free * pageBytes, Quarantined: h.reclaim.pages * pageBytes,
	}
	m.Used = m.Mapped - m.Free - m.Quarantined
	return m
}

// full returns the error for a lack of so many bytes.
func (h *pageHeap) full(bytes uint64) error {
	return &FullError{Bytes: bytes, Memory: h.memory(), Wait: h.untilEmpty()}
}
