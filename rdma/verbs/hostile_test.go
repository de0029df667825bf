//go:build verbs

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
	"drtmx/rdma/rdmatest"
)

const testSegment = 1 << 16

type rig struct {
	ctx    context.Context
	e      rdma.Endpoint
	region *mem.Region
	key    rdma.RKey
}

func newRig(t *testing.T, access rdma.Access, h rdma.Handler) *rig {
	t.Helper()
	return newRigWith(t, access, h, rdma.ListenOptions{})
}

func newRigWith(t *testing.T, access rdma.Access, h rdma.Handler, o rdma.ListenOptions) *rig {
	t.Helper()
	p := newProvider(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	e, err := p.Listen("", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	r := &rig{ctx: ctx, e: e}
	r.region, r.key = r.fresh(t, access)
	if err := e.Serve(h); err != nil {
		t.Fatal(err)
	}
	return r
}

// fresh registers a region of two segments that no connection has asked about.
func (r *rig) fresh(t *testing.T, access rdma.Access) (*mem.Region, rdma.RKey) {
	t.Helper()
	m, err := mappedRegion(mem.Options{SegmentBytes: testSegment, MaxBytes: 8 * testSegment})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Grow(); err != nil {
		t.Fatal(err)
	}
	rdmatest.FillPattern(m, 0, m.Size())
	k, err := r.e.Register(m, access)
	if err != nil {
		t.Fatal(err)
	}
	return m, k
}

// client connects as a client of its own and has READ the region once.
func (r *rig) client(t *testing.T) *conn {
	t.Helper()
	c, err := newProvider(t, Options{}).Dial(r.ctx, r.e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r.mustRead(t, c)
	return c.(*conn)
}

func (r *rig) mustRead(t *testing.T, c rdma.Conn) {
	t.Helper()
	var b rdma.Batch
	b.Read(r.key, 64, make([]uint64, 8))
	if err := rdma.Do(r.ctx, c, &b); err != nil {
		t.Fatal(err)
	}
	if i, ok := rdmatest.HasPattern(b.WRs[0].Buf, 64); !ok {
		t.Fatalf("word %d is wrong", i)
	}
}

// A client that ignores what it was told meets the server's device, which
// serves nothing but READs of the segments registered for that client.
func TestDeviceStopsHostileClients(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	other := r.client(t)
	for name, attack := range map[string]func(r *rig, c, other *conn, b *rdma.Batch){
		"WRITE": func(r *rig, c, _ *conn, b *rdma.Batch) {
			c.regions[r.key].access |= rdma.AccessWrite
			b.Write(r.key, 128, []uint64{1})
		},
		"long WRITE": func(r *rig, c, _ *conn, b *rdma.Batch) {
			c.regions[r.key].access |= rdma.AccessWrite
			b.Write(r.key, 128, make([]uint64, 4096))
		},
		"CAS": func(r *rig, c, _ *conn, b *rdma.Batch) {
			c.regions[r.key].access |= rdma.AccessAtomic
			b.CAS(r.key, 128, rdmatest.Pattern(128), 1, make([]uint64, 1))
		},
		"FAA": func(r *rig, c, _ *conn, b *rdma.Batch) {
			c.regions[r.key].access |= rdma.AccessAtomic
			b.FAA(r.key, 128, 1, make([]uint64, 1))
		},
		"READ past the end": func(r *rig, c, _ *conn, b *rdma.Batch) {
			c.regions[r.key].shift++
			b.Read(r.key, testSegment-64, make([]uint64, 16))
		},
		"READ by a guessed key": func(r *rig, c, _ *conn, b *rdma.Batch) {
			c.regions[r.key].keys[1] ^= 0x5500
			b.Read(r.key, testSegment, make([]uint64, 1))
		},
		"READ by another client's key": func(r *rig, c, other *conn, b *rdma.Batch) {
			c.regions[r.key].keys[1] = other.regions[r.key].keys[1]
			b.Read(r.key, testSegment, make([]uint64, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.client(t)
			var b rdma.Batch
			b.Read(r.key, 0, make([]uint64, 8))
			attack(r, c, other, &b)
			b.Read(r.key, 0, make([]uint64, 8))
			err := rdma.Do(r.ctx, c, &b)
			if !strings.Contains(fmt.Sprint(err), wcRemoteAccess.String()) && !strings.Contains(fmt.Sprint(err), wcRemoteInvReq.String()) {
				t.Errorf("%v: not refused by the device", err)
			}
			for i, want := range []rdma.Status{rdma.StatusOK, rdma.StatusPeerDown, rdma.StatusPeerDown} {
				if s := b.WRs[i].Status; s != want {
					t.Errorf("request %d has status %d, want %d", i, s, want)
				}
			}
			if err := c.Post(&b); !errors.Is(err, rdma.ErrPeerDown) {
				t.Errorf("the connection lives on: %v", err)
			}
			for off := uint64(0); off < r.region.Size(); off += mem.WordBytes {
				if r.region.MustSpan(off, 8).Load(0) != rdmatest.Pattern(off) {
					t.Fatalf("the word at %#x has changed", off)
				}
			}
			r.mustRead(t, other)
		})
	}
}

// A client that sends what is no message loses its connection, and nobody else
// notices.
func TestServerEndsConnectionsThatBreakTheProtocol(t *testing.T) {
	r := newRig(t, rdma.AccessRead, func(q *rdma.Request) {
		if !bytes.Equal(q.Body, []byte("wait")) {
			_ = q.Reply(q.Body)
		}
	})
	other := r.client(t)
	for name, attack := range map[string]func(c *conn) error{
		"kind":            func(c *conn) error { return c.mail.send(fragMax, 0, 1, nil) },
		"server's kind":   func(c *conn) error { return c.mail.send(fragResponse, 0, 1, nil) },
		"more of nothing": func(c *conn) error { return c.mail.send(fragMore, 10, 1, make([]byte, 5)) },
		"too long":        func(c *conn) error { return c.mail.send(fragRequest, rdma.MaxMessageBytes+1, 1, nil) },
		"credits": func(c *conn) error {
			c.mail.toReturn = credits
			return c.mail.send(fragCredit, 0, 0, nil)
		},
		"query": func(c *conn) error { return c.mail.send(fragQuery, 3, 1, make([]byte, 3)) },
		"two requests": func(c *conn) error {
			return errors.Join(c.mail.send(fragRequest, 4, 1, []byte("wait")), c.mail.send(fragRequest, 4, 2, []byte("wait")))
		},
		"a request within another": func(c *conn) error {
			return errors.Join(c.mail.send(fragRequest, 9, 1, []byte("wait")), c.mail.send(fragRequest, 4, 2, []byte("wait")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.client(t)
			if err := attack(c); err != nil {
				t.Fatal(err)
			}
			var b rdma.Batch
			b.Read(r.key, 64, make([]uint64, 8))
			for {
				if err := rdma.Do(r.ctx, c, &b); err != nil {
					if !errors.Is(err, rdma.ErrPeerDown) {
						t.Errorf("%v, want ErrPeerDown", err)
					}
					break
				}
				time.Sleep(time.Millisecond)
			}
			r.mustRead(t, other)
			if out, err := rdma.Call(r.ctx, other, []byte("x"), nil); err != nil || string(out) != "x" {
				t.Errorf("another client's call: %q, %v", out, err)
			}
		})
	}
}

// Atomics are granted only by a device that has them.
func TestAtomicsNeedADevice(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	e := r.e.(*endpoint)
	had := e.lim.atomics
	e.lim.atomics = false
	if _, err := e.Register(r.region, rdma.AccessAtomic); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("a device without atomics: %v, want ErrUnsupported", err)
	}
	e.lim.atomics = had
	if _, err := e.Register(r.region, rdma.AccessAtomic); (err == nil) != had {
		t.Errorf("a device that says %v: %v", had, err)
	}
	c := r.client(t)
	var b rdma.Batch
	b.FAA(r.key, 0, 1, make([]uint64, 1))
	if err := rdma.Do(r.ctx, c, &b); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("an atomic that was not granted: %v, want ErrAccess", err)
	}
	r.mustRead(t, c)
}

// Memory on the Go heap is refused.
func TestHeapRegionsAreRefused(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	m, err := mem.New(mem.Options{Kind: mem.Heap})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.e.Register(m, rdma.AccessRead); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

// A device that answers nothing, not even with an error, ends the connection
// of who waits for it.
func TestSilentDeviceIsGivenUp(t *testing.T) {
	r := newRig(t, rdma.AccessRead, func(*rdma.Request) {}) // answers no call
	c := r.client(t)
	defer c.Close()
	if err := c.StartCall(r.ctx, []byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.mail.ping = true // and it is lost
	c.mu.Unlock()
	start := time.Now()
	_, err := c.FinishCall(r.ctx, nil)
	if !errors.Is(err, rdma.ErrPeerDown) || !strings.Contains(err.Error(), errSilent.Error()) {
		t.Fatalf("a call to a silent device: %v, want ErrPeerDown, for it is silent", err)
	}
	if took := time.Since(start); took < (pingsLost-1)*pingAfter {
		t.Errorf("given up after %v, want %v silent times of %v", took, pingsLost, pingAfter)
	}
}

// TestIdleConnectionGivesBuffersBack: what a large call and a large batch
// needed is free a little later, at both ends, and the connection still works.
func TestIdleConnectionGivesBuffersBack(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	large := bytes.Repeat([]byte("large"), 100<<10)
	for range 2 {
		resp, err := rdma.Call(r.ctx, c, large, nil)
		if err != nil || !bytes.Equal(resp, large) {
			t.Fatalf("%d bytes, %v", len(resp), err)
		}
		var b rdma.Batch
		for range 2 * stagingBytesMin / testSegment {
			b.Read(r.key, 0, make([]uint64, testSegment/mem.WordBytes))
		}
		if err := rdma.Do(r.ctx, c, &b); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		staged := c.stage.size()
		c.mu.Unlock()
		if staged <= stagingBytesMin {
			t.Fatalf("a batch of %d bytes took %d bytes of staging", 2*stagingBytesMin, staged)
		}
		kept := func() (client, server int) {
			c.mu.Lock()
			client = int(c.stage.size()) + cap(c.calls.in.buf)
			c.mu.Unlock()
			for _, s := range r.e.(*endpoint).all() {
				s.giveBack() // as the clerk does from time to time
				s.mu.Lock()
				server += cap(s.in.buf) + cap(s.handed) + cap(s.out)
				s.mu.Unlock()
			}
			return client, server
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			client, server := kept()
			if client <= stagingBytesMin+provide.KeepBytes && server <= 3*provide.KeepBytes {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("an idle connection keeps %d bytes at the client and %d at the server", client, server)
			}
		}
	}
	if resp, err := rdma.Call(r.ctx, c, []byte("still here"), nil); err != nil || string(resp) != "still here" {
		t.Fatalf("%q, %v", resp, err)
	}
}
