package server

import (
	"sync"

	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/wal"
)

// horizon maintains a partition's durable horizon, the word of the control block up to
// which every visible commit is durable. It is all ones if none is pending. It is not
// the last durable CSN: a late commit has a CSN below others that are durable.
type horizon struct {
	mu      sync.Mutex
	pending []pendingCommit // in the order of the log
	late    int             // pending commits with a CSN below an earlier one
	highest block.CSN       // among pending
}

type pendingCommit struct {
	at  wal.LSN
	csn block.CSN
	low bool // counted as late
}

// everything is the horizon when no commit is pending.
const everything = ^uint64(0)

// lower adds a commit that is not visible yet, whose record ends at a position.
func (h *horizon) lower(control mem.Span, at wal.LSN, csn block.CSN) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) == 0 {
		h.highest = 0
	}
	low := csn < h.highest
	if low {
		h.late++
	}
	h.highest = max(h.highest, csn)
	h.pending = append(h.pending, pendingCommit{at, csn, low})
	if len(h.pending) == 1 || low {
		h.store(control)
	}
}

// paid sets the position of the first pending commit that has none.
func (h *horizon) paid(at wal.LSN) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.pending {
		if h.pending[i].at == unloggedLSN {
			h.pending[i].at = at
			return
		}
	}
}

// raise removes the commits whose records end at a position or before.
func (h *horizon) raise(control mem.Span, to wal.LSN) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for n < len(h.pending) && h.pending[n].at <= to {
		if h.pending[n].low {
			h.late--
		}
		n++
	}
	if n > 0 {
		h.pending = h.pending[:copy(h.pending, h.pending[n:])]
		h.store(control)
	}
}

// lag returns the number of commits that are visible and not durable.
func (h *horizon) lag() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pending)
}

func (h *horizon) store(control mem.Span) {
	word := everything
	if len(h.pending) > 0 {
		least := h.pending[0].csn
		if h.late > 0 {
			for _, c := range h.pending {
				least = min(least, c.csn)
			}
		}
		word = uint64(least) - 1
	}
	control.Store(horizonWord, word)
}

// unloggedLSN stands for the position of a record that is not in the log yet.
const unloggedLSN = ^wal.LSN(0)
