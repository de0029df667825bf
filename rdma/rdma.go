package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/mem"
)

// Bounds of the fabric. Exceeding one is ErrTooLarge.
const (
	// MaxMessageBytes bounds one RPC request or response.
	MaxMessageBytes = 1 << 20
	// MaxBatch bounds the work requests of one batch.
	MaxBatch = 4096
	// MaxReadBytes bounds one READ or WRITE.
	MaxReadBytes = 1 << 20
)

// Errors of the fabric. Providers wrap them with detail; callers use errors.Is.
var (
	// ErrPeerDown reports that the connection's peer is gone or the connection broke. A call in flight may or may not have been handled.
	ErrPeerDown = errors.New("rdma: peer is down")
	// ErrClosed reports use of a connection or endpoint after its Close.
	ErrClosed = errors.New("rdma: closed")
	// ErrAccess reports a work request outside a region or against its grant.
	ErrAccess = errors.New("rdma: access violation")
	// ErrTooLarge reports a message, batch or transfer above its bound.
	ErrTooLarge = errors.New("rdma: too large")
	// ErrAddress reports an address that is malformed or in use, or at which no
	// server listens (ErrRefused).
	ErrAddress = errors.New("rdma: bad address")
	// ErrUnsupported reports a verb or option the provider does not have.
	ErrUnsupported = errors.New("rdma: unsupported")
)

// RKey names a registered region at its endpoint. It is a name, not a secret.
type RKey uint32

// Access is the set of verbs that peers may perform on a region.
type Access uint8

// Grants of a region; reading is always granted.
const (
	AccessRead   Access = 1 << iota // READ
	AccessWrite                     // WRITE
	AccessAtomic                    // CAS, FAA
)

// Op is a verb.
type Op uint8

// The one-sided verbs.
const (
	OpRead Op = 1 + iota
	OpWrite
	OpCAS
	OpFAA
)

func (o Op) String() string {
	switch o {
	case OpRead:
		return "READ"
	case OpWrite:
		return "WRITE"
	case OpCAS:
		return "CAS"
	case OpFAA:
		return "FAA"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Status is the completion status of one work request.
type Status uint8

// Completion statuses. The zero value is a request that was not completed.
const (
	StatusPending Status = iota
	StatusOK
	StatusAccess
	StatusPeerDown
	StatusUnsupported
)

// Err returns nil for StatusOK and the fabric's typed error otherwise.
func (s Status) Err() error {
	switch s {
	case StatusOK:
		return nil
	case StatusAccess:
		return ErrAccess
	case StatusPeerDown:
		return ErrPeerDown
	case StatusUnsupported:
		return ErrUnsupported
	}
	return fmt.Errorf("rdma: work request not completed (status %d)", s)
}

// WR is one work request. Addr is a byte offset in the region and a multiple
// of 8, as are all lengths. Buf belongs to the provider from Post until Wait
// returns.
type WR struct {
	Op     Op
	Status Status // set by completion
	RKey   RKey
	Addr   uint64
	Buf    []uint64 // READ: destination; WRITE: source; CAS, FAA: Buf[0] receives the old value
	Arg    uint64   // CAS: expected value; FAA: addend
	Swap   uint64   // CAS: new value
	Tail   uint64   // READ over an in-order connection: word 0 loaded again after the last word
}

// Batch is a list of work requests posted with one doorbell. The zero value is
// empty and ready; Reset keeps its memory. A batch belongs to one connection
// between Post and Wait and may be reused afterwards.
type Batch struct {
	WRs []WR
	// Ordered says that each work request takes effect before the next one begins: a READ or
	// atomic sees what those before it have written, and not what those after it write; other
	// connections never see a WRITE without those before it. If the connection breaks, those
	// that have taken effect, or still will, are the first ones; of a WRITE that is the last of
	// them perhaps only the first words. A request that is refused (StatusAccess,
	// StatusUnsupported) does not stop those after it. Without Ordered, requests take effect in
	// any order.
	Ordered bool
	// Token is for use by the provider that holds the batch.
	Token uint64
}

// Reset empties the batch, and makes it unordered.
func (b *Batch) Reset() { b.WRs, b.Ordered = b.WRs[:0], false }

// Len returns the number of work requests.
func (b *Batch) Len() int { return len(b.WRs) }

// Read appends a READ of len(buf) words at addr and returns its index.
func (b *Batch) Read(key RKey, addr uint64, buf []uint64) int {
	n := len(b.WRs)
	if n == cap(b.WRs) {
		b.WRs = append(b.WRs, WR{})
	} else {
		b.WRs = b.WRs[:n+1]
	}
	// Field by field: the processor stalls if it copies a WR that it has just made.
	w := &b.WRs[n]
	w.Op, w.Status, w.RKey, w.Addr, w.Buf = OpRead, 0, key, addr, buf
	w.Arg, w.Swap, w.Tail = 0, 0, 0
	return n
}

// Write appends a WRITE of buf at addr and returns its index.
func (b *Batch) Write(key RKey, addr uint64, buf []uint64) int {
	b.WRs = append(b.WRs, WR{Op: OpWrite, RKey: key, Addr: addr, Buf: buf})
	return len(b.WRs) - 1
}

// CAS appends a compare-and-swap of the word at addr; the old value lands in old[0].
func (b *Batch) CAS(key RKey, addr, expect, swap uint64, old []uint64) int {
	b.WRs = append(b.WRs, WR{Op: OpCAS, RKey: key, Addr: addr, Buf: old, Arg: expect, Swap: swap})
	return len(b.WRs) - 1
}

// FAA appends a fetch-and-add to the word at addr; the old value lands in old[0].
func (b *Batch) FAA(key RKey, addr, add uint64, old []uint64) int {
	b.WRs = append(b.WRs, WR{Op: OpFAA, RKey: key, Addr: addr, Buf: old, Arg: add})
	return len(b.WRs) - 1
}

// Err returns the error of the first work request that did not succeed.
func (b *Batch) Err() error {
	for i := range b.WRs {
		if s := b.WRs[i].Status; s != StatusOK {
			return fmt.Errorf("%v of %d bytes at %#x, rkey %d: %w",
				b.WRs[i].Op, len(b.WRs[i].Buf)*8, b.WRs[i].Addr, b.WRs[i].RKey, s.Err())
		}
	}
	return nil
}

// Conn is a connection to one endpoint, the equivalent of a queue pair with
// its completion queue. It is used by one goroutine at a time, except that
// Close and Counters may be called from any. Steady-state posting, polling
// and calling allocate nothing.
type Conn interface {
	// Post rings the doorbell for all requests of b. Requests of several
	// connections posted before the first Wait proceed together. It returns
	// an error, and posts nothing, if the connection is unusable or b is
	// empty or above MaxBatch.
	Post(b *Batch) error
	// Wait returns when every request of b is complete, each with its
	// Status: nil if all are StatusOK, else b.Err(). If ctx ends first it
	// returns the error of ctx, and b stays in flight: its buffers belong to
	// the provider until another Wait has returned for any other reason, or
	// Close. Only this goroutine's calls of methods of the connection write to
	// them.
	Wait(ctx context.Context, b *Batch) error
	// StartCall sends an RPC request; req may be reused on return. Only one
	// call may be outstanding at a time. Work requests may be posted during a
	// call. If ctx ends first StartCall returns its error, and the server does
	// not handle the request; the connection is broken if a part was sent.
	StartCall(ctx context.Context, req []byte) error
	// FinishCall awaits the response to StartCall and appends it to
	// resp[:0]. If ctx ends first it returns the error of ctx, and the call
	// stays outstanding, to be finished later.
	FinishCall(ctx context.Context, resp []byte) ([]byte, error)
	// InOrder reports whether READs load words in ascending order and fill Tail.
	InOrder() bool
	// Counters returns a snapshot of the connection's counters.
	Counters() Counters
	// Close releases the connection. Later calls return ErrClosed.
	Close() error
}

// Call performs StartCall and FinishCall.
func Call(ctx context.Context, c Conn, req, resp []byte) ([]byte, error) {
	if err := c.StartCall(ctx, req); err != nil {
		return nil, err
	}
	return c.FinishCall(ctx, resp)
}

// Do performs Post and Wait: one round.
func Do(ctx context.Context, c Conn, b *Batch) error {
	if err := c.Post(b); err != nil {
		return err
	}
	return c.Wait(ctx, b)
}

// Replier is the provider's half of a Request.
type Replier interface {
	// Reply sends body, which may be reused on return.
	Reply(body []byte) error
}

// Request is an RPC being served. Body is valid until the handler returns;
// Reply must be called exactly once, by the handler or later from any
// goroutine. The Request itself may be reused by the provider after Reply.
type Request struct {
	Body []byte
	Peer PeerID
	// From is the identity of the sender. It is the same for all requests of a
	// connection, never nil, and must not be changed.
	From *Identity
	Replier
}

// PeerID distinguishes the connections of one endpoint; never reused by it.
type PeerID uint64

// Handler serves RPCs. The provider calls it from one goroutine for each
// poller, so it must not block on other RPCs: work that may wait must move to
// another goroutine and reply from there. Requests of different connections may
// be handled concurrently.
type Handler func(*Request)

// ListenOptions configure an endpoint. The zero value is usable.
type ListenOptions struct {
	// OnDisconnect, if set, is called once for each peer that disconnected. It is
	// called after Serve, and after the handler has returned from the peer's last
	// request. A peer that disconnects before Serve may not be reported; then the
	// handler receives none of its requests.
	OnDisconnect func(PeerID)
	// OnRefuse, if set, is called with the reason for each peer that the
	// endpoint refused before it was connected. Not every provider can report
	// refusals.
	OnRefuse func(reason error)
}

// Endpoint is the server side of a provider: it owns the grants and serves
// verbs and RPCs on them. Methods are safe for concurrent use.
type Endpoint interface {
	// Addr returns the address that a client passes to Dial.
	Addr() string
	// Register grants peers access to a region, including later segments.
	Register(r *mem.Region, a Access) (RKey, error)
	// Grant gives one peer access to a region beyond what Register has granted to
	// all, until its connection ends. It holds for requests that the peer posts
	// after it has heard of it, in a response say. It returns ErrPeerDown if the
	// peer is not connected, ErrAccess if there is no such region or the peer may
	// not use regions at all, and ErrUnsupported if the fabric cannot do it. If it
	// succeeds, OnDisconnect has not been called for the peer yet: what OnDisconnect
	// takes back is not given afterwards.
	Grant(peer PeerID, key RKey, a Access) error
	// Revoke ends the connection of a peer, if it is connected. It returns when no
	// verb of the peer can take effect any more, not even one that was in flight
	// when its connection broke earlier. It does not bind other connections of the
	// same process. A handler may call it; it does not wait for handlers.
	// OnDisconnect is called as for any other end, by another goroutine.
	Revoke(peer PeerID)
	// Serve starts handling RPCs and returns at once. Call it once, after
	// registering the first regions.
	Serve(h Handler) error
	// Counters returns the sum over all connections of the endpoint, as seen by
	// the server.
	Counters() Counters
	// Close stops serving; connected peers see ErrPeerDown. It waits for running handlers.
	Close() error
}

// Agent is an Endpoint that performs verbs of its peers on the processor of this process, as no RDMA
// device would: tcp all of them, shm WRITEs and atomics.
type Agent interface {
	// AgentTime is how long it has done so. It is time of the clock, which includes what the
	// processor did for others meanwhile.
	AgentTime() time.Duration
}

// ApartAtomics is an Endpoint whose peers may have atomics that are atomic only among each other.
// Those of any other Endpoint are atomic also with respect to this process's processor.
type ApartAtomics interface {
	// AtomicsApart reports whether a peer's atomics are so.
	AtomicsApart(peer PeerID) bool
	// Swap changes a word from one value to another, and reports whether the first was there. It is
	// atomic with the atomics of such peers. It may be called by handlers, and concurrently. After an
	// error it is unknown whether the word was changed, but it will not be later.
	Swap(key RKey, addr, from, to uint64) (bool, error)
}

// Refusal counts the refusals of an endpoint for one reason. The reason is a
// word such as no_room, used in metrics.
type Refusal struct {
	Reason string `json:"reason"`
	Count  uint64 `json:"count"`
}

// Corker is an Endpoint that can wake a peer once for several replies. Calls
// may be nested and concurrent.
type Corker interface {
	// Cork delays the wake-ups for replies that are made from now on, by
	// whatever goroutine, at most until Uncork.
	Cork()
	Uncork()
}

// Auditor is an Endpoint that reports its refusals: of peers, of connections,
// and of verbs that it performs itself.
type Auditor interface {
	// Refusals returns a snapshot, always with the same reasons in the same
	// order.
	Refusals() []Refusal
}

// Provider is one implementation of the fabric.
type Provider interface {
	// Name returns the provider's name on the command line.
	Name() string
	// Listen opens an endpoint at addr; the form of addresses is the provider's.
	Listen(addr string, o ListenOptions) (Endpoint, error)
	// Dial connects to an endpoint of this process or another. ErrRefused and
	// the errors after it are the reasons of failure.
	Dial(ctx context.Context, addr string) (Conn, error)
}

// Unordered reports whether a provider's connections never report InOrder, so
// that data servers must keep checksums for them. Such a provider has a method
// Unordered.
func Unordered(p Provider) bool {
	u, ok := p.(interface{ Unordered() bool })
	return ok && u.Unordered()
}

// Counters are the exact counts of a connection. All fields only grow.
type Counters struct {
	Rounds     uint64 // doorbells
	Reads      uint64
	Writes     uint64
	Atomics    uint64 // CAS and FAA
	ReadBytes  uint64
	WriteBytes uint64
	RPCs       uint64
	RPCBytes   uint64 // requests and responses, payload only
	Faults     uint64 // work requests completed with an error
	Denied     uint64 // of Faults: StatusAccess
	Lost       uint64 // of Faults: StatusPeerDown
}

// Add sums two snapshots.
func (c Counters) Add(d Counters) Counters {
	return Counters{
		c.Rounds + d.Rounds, c.Reads + d.Reads, c.Writes + d.Writes, c.Atomics + d.Atomics,
		c.ReadBytes + d.ReadBytes, c.WriteBytes + d.WriteBytes, c.RPCs + d.RPCs, c.RPCBytes + d.RPCBytes,
		c.Faults + d.Faults, c.Denied + d.Denied, c.Lost + d.Lost,
	}
}

// AddSince adds what has been counted between two snapshots. It copies neither, because
// it is called for every transaction.
func (c *Counters) AddSince(from, to *Counters) {
	c.Rounds += to.Rounds - from.Rounds
	c.Reads += to.Reads - from.Reads
	c.Writes += to.Writes - from.Writes
	c.Atomics += to.Atomics - from.Atomics
	c.ReadBytes += to.ReadBytes - from.ReadBytes
	c.WriteBytes += to.WriteBytes - from.WriteBytes
	c.RPCs += to.RPCs - from.RPCs
	c.RPCBytes += to.RPCBytes - from.RPCBytes
	c.Faults += to.Faults - from.Faults
	c.Denied += to.Denied - from.Denied
	c.Lost += to.Lost - from.Lost
}

// Sub returns the difference to an earlier snapshot.
func (c Counters) Sub(d Counters) Counters {
	return Counters{
		c.Rounds - d.Rounds, c.Reads - d.Reads, c.Writes - d.Writes, c.Atomics - d.Atomics,
		c.ReadBytes - d.ReadBytes, c.WriteBytes - d.WriteBytes, c.RPCs - d.RPCs, c.RPCBytes - d.RPCBytes,
		c.Faults - d.Faults, c.Denied - d.Denied, c.Lost - d.Lost,
	}
}
