package shm

import (
	"context"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma/internal/provide"
)

// ctxPoll is how often the goroutine that sleeps in the kernel looks at a
// context that can be cancelled. The others wait on its channel.
const ctxPoll = 5 * time.Millisecond

// hub lets the goroutines of a client process wait for responses. One of those that
// wait is the leader. It scans the response doorbells of all links, signals the others,
// and when nothing is left sleeps in futex on a word that the servers can wake. So a
// lone caller pays for no hand-over, many callers together cost one sleep and one
// wake-up, and the hub needs no goroutine of its own. With Go's network poller instead,
// a round trip took three times as long.
type hub struct {
	page    *mem.Control // given to every server
	sleep   mem.Span     // word 0: the leader sleeps; a server that clears it wakes
	leading atomic.Bool
	links   atomic.Pointer[[]*link] // copied on change
	spin    provide.Spinner
	yielder yielder // the leader's

	followers atomic.Int32 // len(mu.waiting)
	mu        struct {
		sync.Mutex
		waiting []*conn // followers
	}
}

func newHub(spin time.Duration) (*hub, error) {
	page, err := mem.NewControl("client", pageBytes)
	if err != nil {
		return nil, err
	}
	h := &hub{page: page, sleep: page.Span(0, mem.LineBytes)}
	h.links.Store(new([]*link))
	h.spin.Init(spin)
	return h, nil
}

// add and remove are called under the provider's lock.
func (h *hub) add(l *link) {
	links := append(slices.Clone(*h.links.Load()), l)
	h.links.Store(&links)
}

func (h *hub) remove(l *link) {
	links := slices.DeleteFunc(slices.Clone(*h.links.Load()), func(x *link) bool { return x == l })
	h.links.Store(&links)
}

// await returns when c has its response or has ended. If ctx ends first, await
// returns the context's error.
func (h *hub) await(ctx context.Context, c *conn) error {
	defer h.promote()
	for !c.ready() {
		if ctx.Done() != nil {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if h.leading.CompareAndSwap(false, true) {
			h.lead(ctx, c)
			h.leading.Store(false)
		} else {
			h.follow(ctx, c)
		}
	}
	return nil
}

// promote ensures that there is a leader while there are waiting callers. Every
// return from await calls it, because the caller that was signalled to lead may
// have returned instead.
func (h *hub) promote() {
	if h.followers.Load() == 0 || h.leading.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.mu.waiting {
		if !c.ready() {
			c.signal()
			return
		}
	}
	// All of them are ready; some may not have been signalled.
	for _, c := range h.mu.waiting {
		c.signal()
	}
}

// follow waits for a signal from the leader.
func (h *hub) follow(ctx context.Context, c *conn) {
	select {
	case <-c.wake: // left over from an earlier wait
	default:
	}
	h.mu.Lock()
	c.place = len(h.mu.waiting)
	h.mu.waiting = append(h.mu.waiting, c)
	h.followers.Store(int32(len(h.mu.waiting)))
	h.mu.Unlock()
	c.follows.Store(true)
	// The leader may have scanned this bell, or returned, before this follower
	// was listed.
	if !c.ready() && h.leading.Load() {
		select {
		case <-c.wake:
		case <-ctx.Done():
		}
	}
	c.follows.Store(false)
	h.mu.Lock()
	last := len(h.mu.waiting) - 1
	moved := h.mu.waiting[last]
	h.mu.waiting[c.place], moved.place = moved, c.place
	h.mu.waiting[last] = nil
	h.mu.waiting = h.mu.waiting[:last]
	h.followers.Store(int32(last))
	h.mu.Unlock()
}

// lead scans and sleeps until c is ready or ctx is done.
func (h *hub) lead(ctx context.Context, c *conn) {
	for {
		if h.watch(ctx, c) {
			return
		}
		h.sleep.Store(0, 1)
		if !c.ready() && !h.scan() {
			h.sleep.FutexWait(0, 1, sleepMax(ctx))
		}
		h.sleep.Store(0, 0)
		if c.ready() || ended(ctx) {
			return
		}
	}
}

// sleepMax bounds a sleep in the kernel, which the end of ctx cannot wake.
func sleepMax(ctx context.Context) time.Duration {
	if ctx.Done() == nil {
		return 0
	}
	if d, ok := ctx.Deadline(); ok {
		return max(min(ctxPoll, time.Until(d)), time.Microsecond)
	}
	return ctxPoll
}

func ended(ctx context.Context) bool { return ctx.Done() != nil && ctx.Err() != nil }

// watch scans until c is ready or ctx is done, or until it has found no work
// for as long as spinning pays. It reports whether the caller should return.
func (h *hub) watch(ctx context.Context, c *conn) bool {
	for {
		// The goroutines just signalled run first, because their next calls
		// may bring the next work.
		worked := h.scan()
		if !c.ready() {
			h.yielder.yield(worked)
		}
		if c.ready() {
			return true
		}
		if ended(ctx) {
			return true
		}
		if worked {
			continue
		}
		budget := h.spin.Budget()
		if budget == 0 {
			return false
		}
		start, took := now(), time.Duration(0)
		for ; !c.ready() && !worked; worked = h.scan() {
			if took = now() - start; took >= budget {
				h.spin.Miss()
				return false
			}
			yieldProcessor()
			h.yielder.yield(false) // goroutines of this process may wait for this thread's P
		}
		h.spin.Hit(took)
		if !worked {
			return true
		}
		h.yielder.yield(true)
	}
}

// scan signals the waiting connections whose bells have rung, and reports
// whether there were any.
func (h *hub) scan() (worked bool) {
	links := *h.links.Load()
	defer runtime.KeepAlive(links) // and their memory, if one is removed meanwhile
	for _, l := range links {
		used := int(l.wordsUsed.Load())
		for p := range l.pollers {
			for w := range used {
				worked = h.scanWord(l, p, p*(doorbellWords/l.pollers)+w) || worked
			}
		}
	}
	return worked
}

func (h *hub) scanWord(l *link, poller, word int) (worked bool) {
	if l.responses.Load(word) == 0 {
		return false
	}
	for rung := l.responses.Swap(word, 0); rung != 0; rung &= rung - 1 {
		slot := slotOf(poller, word, bits.TrailingZeros64(rung), l.pollers)
		if c := l.conns[slot].Load(); c != nil && c.follows.Load() {
			c.signal()
			worked = true
		}
	}
	return worked
}

// nudge makes the goroutine that waits for c, and the leader, look again.
func (h *hub) nudge(c *conn) {
	c.signal()
	wakeClient(h.sleep)
}

// wakeClient wakes the leader of a client process if its word says that it
// sleeps. Only the caller that clears the word makes the system call.
func wakeClient(sleep mem.Span) {
	if sleep.Load(0) == 1 && sleep.CompareAndSwap(0, 1, 0) {
		sleep.FutexWake(0, 1)
	}
}
