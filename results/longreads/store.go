package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// A store has two tables of equal size, hot and cold. Each row has a number,
// 100 at first, and a text of 30 bytes. Writers write to hot alone.
type store interface {
	// hows are the ways to read a whole table that the store offers.
	hows() []string
	writer(ctx context.Context) (*writer, error)
	reader(ctx context.Context, how string) (*reader, error)
	// usage is what the store has used so far.
	usage(ctx context.Context) (usage, error)
	// rebuild removes what earlier cells have left behind, as far as the store
	// does not do so by itself.
	rebuild(ctx context.Context) error
	Close() error
}

// writer is one client that writes. It serves one goroutine.
type writer struct {
	// move takes 1 from one row of hot and adds it to another, in one
	// transaction, with all its retries.
	move func(ctx context.Context, from, to uint64) error
	// aborts counts the attempts that ended in a conflict.
	aborts func() uint64
	close  func() error
}

// reader is one client that reads. It serves one goroutine.
type reader struct {
	// read adds up the numbers of all rows of a table.
	read func(ctx context.Context, table string) (sum int64, rows int, err error)
	// counts is what the reader has needed so far.
	counts func() counts
	// cpu is the processor time that the reader has used outside this process.
	cpu   func() time.Duration
	close func() error
}

// counts are exact. A store that does not count has zeros.
type counts struct {
	rounds, reads, bytes uint64
	continued            uint64 // Views that went on as snapshots
}

func (c counts) sub(d counts) counts {
	return counts{c.rounds - d.rounds, c.reads - d.reads, c.bytes - d.bytes, c.continued - d.continued}
}

func (c *counts) add(d counts) {
	c.rounds, c.reads, c.bytes, c.continued = c.rounds+d.rounds, c.reads+d.reads, c.bytes+d.bytes, c.continued+d.continued
}

type usage struct {
	cpu      time.Duration // of the store's other processes
	bytes    uint64        // of the data
	versions uint64        // of bytes: what is kept for readers, where the store counts it
}

const (
	hot, cold = "hot", "cold"
	balance   = 100
	note      = "thirty bytes beside the number"
)

// ownCPU is the processor time of this process.
func ownCPU() time.Duration { return rusage(unix.RUSAGE_SELF) }

// threadCPU is that of the calling thread.
func threadCPU() time.Duration { return rusage(unix.RUSAGE_THREAD) }

func rusage(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
