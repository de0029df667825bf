package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
	"drtmx/rdma/rdmatest"
)

// handshakes are what may arrive at first.
func handshakes() [][]byte {
	h, full := ourHello(), ourHello()
	full.reason, full.grants = reasonFull, 3
	return [][]byte{
		h.encode(), full.encode(), []byte("GET / HTTP/1.1\r\n\r\n"),
		bytesOf(frame{kind: kindBatch, count: 1, size: 4}.word0(), 7, 1, 64, 2, 3),
	}
}

// FuzzHandshake decodes hellos, and headers and verbs, from anyone.
func FuzzHandshake(f *testing.F) {
	for _, b := range handshakes() {
		f.Add(b)
	}
	f.Fuzz(checkHandshake)
}

func TestMutatedHandshakes(t *testing.T) {
	rdmatest.Mutated(t, 100000, handshakes(), func(b []byte) { checkHandshake(t, b) })
}

func checkHandshake(t *testing.T, b []byte) {
	if h, err := decodeHello(b); err == nil {
		if h.reason >= reasonMax || h.grants > MaxRegions {
			t.Fatalf("accepted %+v", h)
		}
		if h2, err := decodeHello(h.encode()); err != nil || h2 != h {
			t.Fatalf("%+v became %+v, %v", h, h2, err)
		}
		_ = h.check().err()
	}
	if len(b) < headerBytes+verbWords*mem.WordBytes {
		return
	}
	if fr, err := decodeFrame(word(b), word(b[8:])); err == nil {
		if n := fr.payloadWords(); n > frameWordsMax || fr.word0() != word(b) {
			t.Fatalf("accepted %+v of %d words", fr, n)
		}
	}
	var w [verbWords]uint64
	for i := range w {
		w[i] = word(b[headerBytes+i*mem.WordBytes:])
	}
	if v, err := decodeVerb(w[:]); err == nil && (v.word0() != w[0] || v.tailWords() > rdma.MaxReadBytes/mem.WordBytes) {
		t.Fatalf("accepted %+v", v)
	}
}

func bytesOf(w ...uint64) []byte {
	var b []byte
	for _, v := range w {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

func wordsIn(b []byte) []uint64 {
	w := make([]uint64, len(b)/mem.WordBytes)
	for i := range w {
		w[i] = word(b[i*mem.WordBytes:])
	}
	return w
}

// fuzzServer stands in for the connection of an agent.
type fuzzServer struct {
	sent  []uint64
	calls int
}

func (s *fuzzServer) emit(w []uint64) error {
	s.sent = append(s.sent, w...)
	return nil
}
func (s *fuzzServer) ready() error              { return nil }
func (s *fuzzServer) call(uint64, []byte) error { s.calls++; return nil }
func (s *fuzzServer) grant(rdma.RKey) grant     { return grant{} }

// fuzzCaps are what the agent under test has granted for slots 0 and 1; a
// third region is not granted at all.
var fuzzCaps = []capability{{1, 2}, {3, 4}}

const fuzzBytes = 1 << 12 // of a region

func fuzzRegions(t testing.TB) (readable, writable, foreign *mem.Region) {
	var r [3]*mem.Region
	for i := range r {
		var err error
		if r[i], err = mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: fuzzBytes, MaxBytes: 2 * fuzzBytes}); err != nil {
			t.Fatal(err)
		}
		rdmatest.FillPattern(r[i], 0, fuzzBytes)
	}
	return r[0], r[1], r[2]
}

// validRequests are a batch with a slot's capability, and all else a client
// may send.
func validRequests(slot uint16) []uint64 {
	wr := []rdma.WR{
		{Op: rdma.OpRead, Addr: 64, Buf: make([]uint64, 8)},
		{Op: rdma.OpWrite, Addr: 128, Buf: make([]uint64, 3)},
		{Op: rdma.OpCAS, Addr: 8, Buf: make([]uint64, 1), Arg: 1, Swap: 2},
		{Op: rdma.OpFAA, Addr: 16, Buf: make([]uint64, 1), Arg: 1},
		{Op: rdma.OpRead, Addr: fuzzBytes - 8, Buf: make([]uint64, 2)},
		{Op: rdma.OpRead, Addr: ^uint64(7), Buf: make([]uint64, 2)},
	}
	w := []uint64{0, 1}
	for i := range wr {
		w = appendWR(w, &wr[i], slot, fuzzCaps[slot%2])
	}
	w[0] = frame{kind: kindBatch, count: uint16(len(wr)), size: uint32(len(w) - headerWords)}.word0()
	w = appendMessage(w, kindCall, 1, []byte("a request"))
	return append(w, frame{kind: kindPing}.word0(), 0, frame{kind: kindAsk}.word0(), 3)
}

// FuzzAgent gives an agent any words, in any pieces: nothing but what was
// granted changes, what it answers is well-formed, and the pieces do not
// matter.
func FuzzAgent(f *testing.F) {
	for slot := range uint16(3) {
		f.Add(bytesOf(validRequests(slot)...), uint64(slot))
	}
	readable, writable, foreign := fuzzRegions(f)
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		checkAgent(t, [3]*mem.Region{readable, writable, foreign}, wordsIn(b), seed)
	})
}

// fuzzPattern is what the regions hold before.
var fuzzPattern = func() (w [fuzzBytes / mem.WordBytes]uint64) {
	for i := range w {
		w[i] = rdmatest.Pattern(uint64(i) * mem.WordBytes)
	}
	return w
}()

// checkAgent gives an agent the words, whole and in pieces.
func checkAgent(t *testing.T, regions [3]*mem.Region, w []uint64, seed uint64) {
	readable, writable, foreign := regions[0], regions[1], regions[2]
	var outs [2][]uint64
	for i := range outs {
		writable.MustSpan(0, fuzzBytes).CopyIn(fuzzPattern[:])
		var refused provide.Audit
		refused.Count(refusalNames...)
		var tally rdma.Tally
		s := &fuzzServer{}
		a := newAgent(s, new(provide.Extra), &refused, &tally)
		a.grants = []grant{
			{fuzzCaps[0], rdma.AccessRead, readable},
			{fuzzCaps[1], rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic, writable},
			{capability{5, 6}, 0, foreign},
		}
		feed(a, w, i == 1, rand.New(rand.NewPCG(seed, 0)))
		_ = a.flush()
		outs[i] = s.sent
		checkStream(t, s.sent)
	}
	var now [fuzzBytes / mem.WordBytes]uint64
	for _, m := range []*mem.Region{readable, foreign} {
		if m.MustSpan(0, fuzzBytes).CopyOut(now[:]); now != fuzzPattern {
			t.Fatal("a region without a grant to write changed")
		}
	}
	if !slices.Equal(outs[0], outs[1]) {
		t.Fatal("the answers depend on the pieces in which requests arrive")
	}
}

// feed gives w to an agent, as the connection does.
func feed(a *agent, w []uint64, pieces bool, r *rand.Rand) {
	used, end := 0, 0
	for end < len(w) {
		if end += 1 + r.IntN(40); !pieces || end > len(w) {
			end = len(w)
		}
		n, err := a.consume(w[used:end])
		if err != nil {
			return
		}
		used += n
	}
}

// checkStream walks what a server has sent.
func checkStream(t *testing.T, w []uint64) {
	for len(w) > 0 {
		if len(w) < headerWords {
			t.Fatalf("%d words behind the last frame", len(w))
		}
		fr, err := decodeFrame(w[0], w[1])
		if err != nil || headerWords+fr.payloadWords() > len(w) {
			t.Fatalf("the agent sent a frame %+v with %d words behind it: %v", fr, len(w)-headerWords, err)
		}
		w = w[headerWords+fr.payloadWords():]
	}
}

// fuzzConn is a client with a batch and a call under way.
func fuzzConn() (*conn, *rdma.Batch, [][]uint64) {
	c := &conn{addr: "fuzz", in: make([]byte, inputWords*mem.WordBytes), lastID: 1}
	var b rdma.Batch
	var guards [][]uint64
	for _, n := range []int{1, 8, 700} {
		g := make([]uint64, n+2)
		g[0], g[n+1] = canary, canary
		guards = append(guards, g)
		b.Read(1, 64, g[1:n+1])
	}
	b.Write(1, 64, make([]uint64, 4))
	b.CAS(1, 64, 0, 1, make([]uint64, 1))
	b.FAA(1, 64, 1, make([]uint64, 1))
	for i := range b.WRs {
		b.WRs[i].Status = rdma.StatusPending
	}
	c.flights = append(c.flights, flight{b: &b, id: 1, sent: len(b.WRs) - 1})
	c.unanswered = len(b.WRs) - 1
	c.call = call{calling: true, seq: 1}
	return c, &b, guards
}

const canary = 0xdeadbeefcafef00d

// FuzzClient gives a client whatever a server may send, in any pieces: it
// writes nowhere but to the buffers of its requests.
func FuzzClient(f *testing.F) {
	good := []uint64{frame{kind: kindResults, count: 2, size: 13}.word0(), 1, 1, 7, 7, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1}
	f.Add(bytesOf(good...), uint64(1))
	f.Add(bytesOf(appendMessage(good, kindReply, 1, []byte("a response"))...), uint64(2))
	f.Add(bytesOf(append(good, frame{kind: kindGrant}.word0(), 9, 1, 2, 3, frame{kind: kindPong}.word0(), 0)...), uint64(3))
	f.Add(bytesOf(append([]uint64{frame{kind: kindResults, count: 3, size: 715}.word0(), 1, 2, 2, 1}, make([]uint64, 701)...)...), uint64(4))
	f.Fuzz(checkClient)
}

// checkClient gives a client the bytes, in pieces.
func checkClient(t *testing.T, in []byte, seed uint64) {
	c, b, guards := fuzzConn()
	r := rand.New(rand.NewPCG(seed, 0))
	for len(in) > 0 {
		dst := c.readInto()
		direct := len(dst) > 0
		if !direct {
			dst = c.in[c.fill:]
		}
		if len(dst) == 0 {
			t.Fatal("the buffer is full and nothing is taken")
		}
		n := copy(dst[:min(len(dst), 1+r.IntN(3000))], in)
		in = in[n:]
		if direct {
			c.got += n
		} else {
			c.fill += n
		}
		if c.take() != nil {
			break
		}
	}
	for i, g := range guards {
		if g[0] != canary || g[len(g)-1] != canary {
			t.Fatalf("READ %d wrote outside its buffer", i)
		}
	}
	if s := b.WRs[len(b.WRs)-1].Status; s != rdma.StatusPending {
		t.Fatalf("a request that was not sent completed with status %d", s)
	}
}

// TestMutatedStreams does what the fuzz targets do, with streams that are
// almost well-formed: a word or two of valid ones is changed. DRTMX_LONG
// multiplies the number.
func TestMutatedStreams(t *testing.T) {
	executions := 20000
	if n, err := strconv.Atoi(os.Getenv("DRTMX_LONG")); err == nil && n > 0 {
		executions *= n
	}
	r := rand.New(rand.NewPCG(rdmatest.Seed(t), 0))
	readable, writable, foreign := fuzzRegions(t)
	words := []uint64{0, 1, 2, 3, 8, 64, fuzzBytes, fuzzBytes - 8, 1 << 32, 1 << 47, ^uint64(0), ^uint64(7)}
	mutate := func(w []uint64) []uint64 {
		w = slices.Clone(w)
		for range 1 + r.IntN(3) {
			switch i := r.IntN(len(w)); r.IntN(4) {
			case 0:
				w[i] = words[r.IntN(len(words))]
			case 1:
				w[i] ^= 1 << r.IntN(64)
			case 2:
				w[i] += words[r.IntN(len(words))] << (8 * r.IntN(8))
			case 3:
				w = w[:i+1]
			}
		}
		return w
	}
	for i := range executions {
		if i%2 == 0 {
			checkAgent(t, [3]*mem.Region{readable, writable, foreign}, mutate(validRequests(uint16(r.IntN(3)))), r.Uint64())
		} else {
			checkClient(t, bytesOf(mutate(validAnswers())...), r.Uint64())
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d executions", executions)
}

// validAnswers are what the client of fuzzConn may be sent.
func validAnswers() []uint64 {
	w := []uint64{frame{kind: kindResults, count: 2, size: 13}.word0(), 1, 1, 7, 7, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1}
	w = appendMessage(w, kindReply, 1, []byte("a response"))
	w = append(w, frame{kind: kindGrant}.word0(), 9, 1, 2, 3, frame{kind: kindPong}.word0(), 0)
	w = append(w, frame{kind: kindResults, count: 3, size: 705}.word0(), 1, 1)
	return append(append(w, make([]uint64, 701)...), 1, 1, 5)
}

// script is a connection on which the peer has said everything already.
type script struct {
	net.Conn
	in []byte
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.in)
	s.in = s.in[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error) { return len(p), nil }

// greetings are what a server may answer.
func greetings() [][]byte {
	h := ourHello()
	h.grants = 2
	grants := func(keys ...uint64) (b []byte) {
		for _, k := range keys {
			b = append(b, bytesOf(frame{kind: kindGrant, id: k}.word0(), k, 1, 2, 1)...)
		}
		return b
	}
	full := h
	full.reason = reasonFull
	prove, refused := h, h
	prove.reason, prove.nonce, refused.reason = reasonProve, [nonceBytes]byte{1, 2, 3}, reasonRole
	return [][]byte{
		append(append(prove.encode(), h.encode()...), grants(1, 2)...), append(prove.encode(), refused.encode()...), append(prove.encode(), prove.encode()...),
		append(h.encode(), grants(1, 2)...), append(h.encode(), grants(300, MaxRegions+1)...), append(h.encode(), grants(1, 0)...),
		full.encode(), []byte("\x16\x03\x01 and so on, as TLS begins, for as long as a hello is or longer"),
	}
}

// FuzzGreeting has a client greet a server that answers with anything: it
// holds no more capabilities than it was given, and errors are typed.
func FuzzGreeting(f *testing.F) {
	for _, b := range greetings() {
		f.Add(b)
	}
	f.Fuzz(checkGreeting)
}

func TestMutatedGreetings(t *testing.T) {
	rdmatest.Mutated(t, 20000, greetings(), func(b []byte) { checkGreeting(t, b) })
}

func checkGreeting(t *testing.T, b []byte) {
	for _, role := range []rdma.Role{rdma.RoleLoader, rdma.RoleServer} {
		checkGreetingAs(t, b, role)
	}
}

func checkGreetingAs(t *testing.T, b []byte, role rdma.Role) {
	c := &conn{conn: &script{in: b}, in: make([]byte, 512)}
	if err := c.hello(&Provider{}, role); err != nil {
		typed := errors.Is(err, rdma.ErrPeerDown) || errors.Is(err, rdma.ErrTooLarge) || errors.Is(err, rdma.ErrUnsupported) ||
			errors.Is(err, rdma.ErrRole)
		if !typed && !errors.Is(err, errHandshake) && !errors.Is(err, ErrAuth) {
			t.Fatalf("error %v", err)
		}
		return
	}
	h, err := decodeHello(b[:helloBytes])
	if h.reason == reasonProve && role == rdma.RoleServer {
		h, err = decodeHello(b[helloBytes : 2*helloBytes])
	}
	if err != nil || h.reason != reasonNone {
		t.Fatalf("accepted a welcome that is none: %v", err)
	}
	held := uint32(0)
	for _, yes := range c.held {
		if yes {
			held++
		}
	}
	if held > h.grants || len(c.caps) > MaxRegions {
		t.Fatalf("%d capabilities in %d slots of %d granted", held, len(c.caps), h.grants)
	}
}
