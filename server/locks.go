package server

import (
	"slices"

	"drtmx/index"
)

// sharedLocks is a partition's table of shared locks: the words whose values
// must not change until a prepared transaction is decided. The partition's
// mutex guards it. It implements index.SharedLocks.
type sharedLocks struct {
	owners map[uint64][]index.Owner
	// words are the addresses of each owner, so that the cost of releasing its
	// locks depends only on their number. A listed word may have moved since.
	words map[index.Owner][]uint64
}

func newSharedLocks() *sharedLocks {
	return &sharedLocks{map[uint64][]index.Owner{}, map[index.Owner][]uint64{}}
}

// Empty implements index.SharedLocks.
func (l *sharedLocks) Empty() bool { return len(l.owners) == 0 }

// SharedByOther implements index.SharedLocks.
func (l *sharedLocks) SharedByOther(addr uint64, o index.Owner) bool {
	for _, other := range l.owners[addr] {
		if other != o {
			return true
		}
	}
	return false
}

// Move implements index.SharedLocks.
func (l *sharedLocks) Move(from, to uint64) {
	if from == to {
		return
	}
	if os, ok := l.owners[from]; ok {
		delete(l.owners, from)
		for _, o := range os {
			l.add(to, o)
		}
	}
}

// Copy implements index.SharedLocks.
func (l *sharedLocks) Copy(from, to uint64) {
	if from == to {
		return
	}
	for _, o := range l.owners[from] {
		l.add(to, o)
	}
}

func (l *sharedLocks) add(addr uint64, o index.Owner) {
	for _, have := range l.owners[addr] {
		if have == o {
			return
		}
	}
	l.owners[addr] = append(l.owners[addr], o)
	l.words[o] = append(l.words[o], addr)
}

// beyond reports whether an owner has shared locks on words other than the headers
// of the rows that it has locked. Both are where they are now: what moves a row
// moves its locks.
func (l *sharedLocks) beyond(o index.Owner, held []*index.Held) bool {
	own := make(map[uint64]struct{}, len(held))
	for _, h := range held {
		own[h.Addr] = struct{}{}
	}
	return slices.ContainsFunc(l.words[o], func(addr uint64) bool {
		_, locked := own[addr]
		return !locked && slices.Contains(l.owners[addr], o)
	})
}

// release drops all shared locks of one owner.
func (l *sharedLocks) release(o index.Owner) {
	for _, addr := range l.words[o] {
		os := l.owners[addr]
		at := slices.Index(os, o)
		switch {
		case at < 0: // the lock has moved, and its new word is also listed
		case len(os) == 1:
			delete(l.owners, addr)
		default:
			os[at] = os[len(os)-1]
			l.owners[addr] = os[:len(os)-1]
		}
	}
	delete(l.words, o)
}
