package etcd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"drtmx/internal/certs"
	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/member/etcd"
	"drtmx/internal/member/etcd/embedded"
	"drtmx/internal/member/membertest"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
)

// tick makes etcd's shortest lease one second long.
const tick = 10 * time.Millisecond

// patience bounds calls of tests in which etcd stops answering. While it answers,
// it does so within this time even on a busy machine.
const patience = 5 * time.Second

// TestMain runs more tests at once than there are processors, because they
// mostly wait. It checks that no goroutine is left.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// start runs an etcd server until the test ends.
func start(t testing.TB, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	o.Volatile, o.Tick = true, tick
	s, err := embedded.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestCloseBesideASilentClient: a client has connected, and sends nothing. The server stops all the same, and
// its directory and its address can be used again.
func TestCloseBesideASilentClient(t *testing.T) {
	t.Parallel()
	o := embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"}
	s := start(t, o)
	c, err := net.Dial("tcp", s.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "silent"}) // it is accepted after the silent one
	first, err := st.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = st.Close()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testseed.Patience()):
		t.Fatal("Close waits for a client that sends nothing")
	}
	o.Listen = s.Endpoint()
	again := open(t, etcd.Options{Endpoints: []string{start(t, o).Endpoint()}, Name: "silent"})
	if now, err := again.State(t.Context()); err != nil || now.Revision < first.Revision {
		t.Errorf("started again, the server has revision %v, %v; it had %d", now, err, first.Revision)
	}
}

// open opens a handle, which waits for long unless the options say otherwise.
func open(t testing.TB, o etcd.Options) *etcd.Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = testseed.Patience()
	}
	s, err := etcd.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// raw returns a plain etcd client.
func raw(t testing.TB, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func server(index placement.Server) member.Server {
	return member.Server{Index: index, Instance: member.NewInstance(), Endpoints: []member.Endpoint{
		{Fabric: "tcp", Addr: fmt.Sprintf("10.0.0.%d:7000", index+1)},
	}}
}

func newMap(epoch member.MapEpoch) *member.Map {
	return &member.Map{Epoch: epoch, ID: 1, Size: 2, Placement: placement.Spread(2, 2)}
}

// oneLine fails unless err is of a kind and is one line that contains texts.
func oneLine(t testing.TB, what string, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: error %v, want %v", what, err, kind)
		return
	}
	for _, text := range append(texts, "member: ") {
		if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %q, want one line with %q", what, err, text)
		}
	}
}

// refusal opens a handle that is to fail for a reason, with longer and longer timeouts:
// a busy machine may need more time to find out.
func refusal(t testing.TB, o etcd.Options, reason string) error {
	t.Helper()
	for o.Timeout = 400 * time.Millisecond; ; o.Timeout *= 2 {
		s, err := etcd.Open(t.Context(), o)
		if err == nil {
			_ = s.Close()
			return nil
		}
		if strings.Contains(err.Error(), reason) || o.Timeout > testseed.Patience()/4 {
			return err
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	t.Run("Suite", func(t *testing.T) {
		membertest.Run(t, membertest.Fixture{TTL: time.Second, Open: func(t testing.TB, name string) member.Store {
			s, err := etcd.Open(context.Background(), etcd.Options{Endpoints: []string{s.Endpoint()}, Name: name, Timeout: testseed.Patience()})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}})
	})
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // connects, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for what, c := range map[string]struct {
		endpoints []string
		text      string
	}{
		"nobody":   {[]string{nobody}, "refused"},
		"mute":     {[]string{mute.Addr().String()}, "is it etcd"},
		"several":  {[]string{nobody, mute.Addr().String()}, "is it etcd"},
		"nonsense": {[]string{"no.such.host.invalid:2379"}, "no such host"},
	} {
		text := c.text
		if what == "nonsense" {
			text = "no.such.host.invalid" // how a resolver says no depends on the machine
		}
		err := refusal(t, etcd.Options{Endpoints: c.endpoints, Name: "c"}, text)
		oneLine(t, what, err, member.ErrUnreachable, c.endpoints[0], text)
		if errors.Is(err, member.ErrOutcome) {
			t.Errorf("%s: a read with an unknown outcome: %v", what, err)
		}
	}
	from := time.Now()
	if _, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{mute.Addr().String()}, Name: "c", Timeout: 400 * time.Millisecond}); err == nil {
		t.Error("an etcd that says nothing was opened")
	}
	if d := time.Since(from); d > testseed.Patience()/3 {
		t.Errorf("a timeout of 400 ms took %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{mute.Addr().String()}, Name: "c"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller's deadline: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []etcd.Options{
		{Name: "c"},
		{Endpoints: []string{"127.0.0.1:1"}},
		{Endpoints: []string{"127.0.0.1:1"}, Name: "a/b"},
		{Endpoints: []string{"http://127.0.0.1:1"}, Name: "c"},
		{Endpoints: []string{"127.0.0.1"}, Name: "c"},
		{Endpoints: []string{"127.0.0.1:0"}, Name: "c"},
		{Endpoints: []string{":2379"}, Name: "c"},
		{Endpoints: []string{"127.0.0.1:1"}, Name: "c", Timeout: -1},
	} {
		_, err := etcd.Open(t.Context(), o)
		oneLine(t, fmt.Sprintf("%+v", o), err, member.ErrInput)
	}
	for _, o := range []embedded.Options{
		{Listen: "127.0.0.1:0"},
		{Dir: t.TempDir(), Listen: "127.0.0.1"},
		{Dir: t.TempDir(), Listen: "example.com:2379"},
		{Dir: t.TempDir(), Listen: "0.0.0.0:0"},
	} {
		_, err := embedded.Start(t.Context(), o)
		oneLine(t, fmt.Sprintf("%+v", o), err, member.ErrInput)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := embedded.Start(t.Context(), embedded.Options{Dir: file, Listen: "127.0.0.1:0"})
	if !errors.Is(err, embedded.ErrStart) {
		t.Errorf("data directory that is a file: %v", err)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Listen: l.Addr().String()})
	oneLine(t, "port in use", err, embedded.ErrStart, l.Addr().String(), "in use")
}

func TestWrongName(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	for _, name := range []string{"beta", "alpha"} {
		if err := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: name}).Swap(t.Context(), 0, newMap(1)); err != nil {
			t.Fatal(err)
		}
	}
	open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "alpha", Existing: true})
	_, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "gamma", Existing: true})
	oneLine(t, "wrong name", err, member.ErrNoCluster, `"gamma"`, s.Endpoint(), `it has "alpha", "beta"`)
}

func TestForeignValues(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	c := raw(t, s.Endpoint())
	good, err := member.EncodeServer(&member.Server{Index: 1, Instance: 1, Endpoints: server(1).Endpoints})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range []struct {
		key, value string
		want       error
		text       string
	}{
		{"map", `{"format":6,"future":true}`, member.ErrFormat, "format 6, this binary reads format 5"},
		{"map", `hello`, member.ErrCorrupt, ""},
		{"map", `{"format":5}`, member.ErrCorrupt, ""},
		{"servers/000", `{"format":7}`, member.ErrFormat, "format 7"},
		{"servers/000", string(good), member.ErrCorrupt, "server 1"},
	} {
		name := fmt.Sprintf("c%d", i)
		store := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: name})
		if _, err := c.Put(t.Context(), "/drtmx/"+name+"/"+v.key, v.value); err != nil {
			t.Fatal(err)
		}
		_, err := store.State(t.Context())
		oneLine(t, v.value, err, v.want, "/drtmx/"+name+"/"+v.key, v.text)
		_, err = store.Watch(t.Context(), 0)
		oneLine(t, v.value, err, v.want)
		_, err = etcd.Open(t.Context(), etcd.Options{Endpoints: []string{s.Endpoint()}, Name: name})
		oneLine(t, v.value, err, v.want)
		if v.key == "map" {
			oneLine(t, v.value, store.Swap(t.Context(), 0, newMap(1)), v.want)
			continue
		}
		_, err = store.Join(t.Context(), server(0), time.Second)
		oneLine(t, v.value, err, v.want, "/drtmx/"+name+"/"+v.key, v.text)
		oneLine(t, v.value, store.Evict(t.Context(), 0, 1), v.want)
	}
}

// restart stops a server, calls between, and starts the server at the same
// address.
func restart(t testing.TB, s *embedded.Server, dir string, between func()) *embedded.Server {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	between()
	return start(t, embedded.Options{Dir: dir, Listen: s.Endpoint()})
}

func TestEtcdStopsAndComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Options{Dir: dir})
	store := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c", Timeout: patience})
	if err := store.Swap(t.Context(), 0, newMap(1)); err != nil {
		t.Fatal(err)
	}
	long, err := store.Join(t.Context(), server(0), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	short, err := store.Join(t.Context(), server(1), patience)
	if err != nil {
		t.Fatal(err)
	}
	state, err := store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cut, seen, ended := make(chan error, 100), make(chan *member.State, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- member.Follow(ctx, store, func(s *member.State) { seen <- s }, func(err error) { cut <- err })
	}()
	if first := <-seen; len(first.Alive) != 2 {
		t.Errorf("alive: %+v", first.Alive)
	}
	restart(t, s, dir, func() {
		from := time.Now()
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := store.State(t.Context())
			oneLine(t, "read", err, member.ErrUnreachable, s.Endpoint())
		})
		calls.Go(func() { oneLine(t, "change", store.Swap(t.Context(), 1, newMap(2)), member.ErrUnreachable) })
		calls.Go(func() {
			_, err := store.Join(t.Context(), server(3), time.Second)
			oneLine(t, "join", err, member.ErrUnreachable)
		})
		calls.Go(func() {
			_, err := store.Watch(t.Context(), state.Revision)
			oneLine(t, "watch", err, member.ErrUnreachable)
		})
		calls.Wait()
		if d := time.Since(from); d > testseed.Patience()/2 {
			t.Errorf("four calls took %v", d)
		}
		oneLine(t, "follow", <-cut, member.ErrUnreachable)
		<-short.Lost()
		oneLine(t, "a short lease", short.Err(), member.ErrLeaseLost, "not renewed within")
	})
	if err := retry(func() error { return store.Swap(t.Context(), 1, newMap(2)) }); err != nil {
		t.Fatal(err)
	}
	for s := range seen {
		if s.Map != nil && s.Map.Epoch == 2 {
			break
		}
	}
	stamp := long.Stamp()
	if long.Err() != nil || long.Deadline()-clock.Now() <= 0 {
		t.Errorf("lease of a minute: %v, deadline %v, %+v", long.Err(), long.Deadline(), stamp)
	}
	if _, err := member.JoinWhenFree(t.Context(), store, server(1), time.Second); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// retry repeats do for a while, since it may fail until a connection exists
// again.
func retry(do func() error) error {
	for deadline := time.Now().Add(testseed.Patience()); ; time.Sleep(20 * time.Millisecond) {
		if err := do(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// An etcd that has lost its data issues epochs again: a client that knew the
// old data must refuse it.
func TestEtcdThatLostItsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Options{Dir: dir})
	store := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c", Timeout: patience})
	if err := store.Swap(t.Context(), 0, newMap(1)); err != nil {
		t.Fatal(err)
	}
	restart(t, s, dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	})
	err := retry(func() error {
		_, err := store.State(t.Context())
		if errors.Is(err, member.ErrUnreachable) {
			return err
		}
		oneLine(t, "read", err, member.ErrReplaced, s.Endpoint())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	oneLine(t, "swap", store.Swap(t.Context(), 1, newMap(2)), member.ErrReplaced)
	_, err = store.Watch(t.Context(), 1)
	oneLine(t, "watch", err, member.ErrReplaced)
	oneLine(t, "follow", member.Follow(t.Context(), store, func(*member.State) {}, nil), member.ErrReplaced)
	open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c"})
}

// A watch that was interrupted for longer than etcd keeps revisions still gets
// the latest state.
func TestWatchAfterCompaction(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	store := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c"})
	first, err := store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for e := range member.MapEpoch(5) {
		if err := store.Swap(t.Context(), e, newMap(e+1)); err != nil {
			t.Fatal(err)
		}
	}
	last, err := store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw(t, s.Endpoint()).Compact(t.Context(), int64(last.Revision)); err != nil {
		t.Fatal(err)
	}
	state, err := store.Watch(t.Context(), first.Revision)
	if err != nil || state.Map == nil || state.Map.Epoch != 5 {
		t.Errorf("%+v, %v", state, err)
	}
}

// TestNotesAreReadOnce: notes of how far logs are durable are no change, and the next
// round of a watch begins after them.
func TestNotesAreReadOnce(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	store := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c"})
	lease, err := store.Join(t.Context(), member.Server{
		Index: 0, Instance: 5, Incarnation: 7, Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: "10.0.0.1:7000"}},
	}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	state, err := store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const notes = 5
	for n := range uint64(notes) {
		if err := lease.Advance(t.Context(), n+1); err != nil {
			t.Fatal(err)
		}
	}
	seen, changed := int64(state.Revision), false
	for end := time.Now().Add(testseed.Patience()); !changed && seen < int64(state.Revision)+notes && time.Now().Before(end); {
		seen, changed = store.Changed(t.Context(), seen) // a busy machine may need more than one round
	}
	if changed || seen < int64(state.Revision)+notes {
		t.Errorf("seen up to %d, changed %v; want %d or more and no change", seen, changed, int64(state.Revision)+notes)
	}
}

// proxy forwards bytes until swallow is closed, and then drops answers.
func proxy(t testing.TB, to string, swallow <-chan struct{}) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				defer up.Close()
				_, _ = io.Copy(up, c)
			}()
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				for {
					n, err := up.Read(b)
					if err != nil {
						return
					}
					select {
					case <-swallow:
						continue
					default:
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// The error of a change whose answer is lost says that it may have been made.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	swallow := make(chan struct{})
	at := proxy(t, s.Endpoint(), swallow)
	cut := open(t, etcd.Options{Endpoints: []string{at}, Name: "c", Timeout: patience})
	l, err := cut.Join(t.Context(), server(0), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	close(swallow)
	var calls sync.WaitGroup
	calls.Go(func() {
		oneLine(t, "a change that begins by reading", cut.Evict(t.Context(), 0, 1), member.ErrUnreachable, at)
	})
	calls.Go(func() {
		_, err := cut.Join(t.Context(), server(1), time.Second)
		oneLine(t, "a change", err, member.ErrUnreachable, at, "no answer within")
		if !errors.Is(err, member.ErrOutcome) {
			t.Errorf("a change whose answer is lost: %v", err)
		}
	})
	calls.Wait()
	<-l.Lost()
	oneLine(t, "lease", l.Err(), member.ErrLeaseLost)
	if clock.Now() < l.Deadline() {
		t.Errorf("the holder lost its lease before its deadline")
	}
}

// issue writes certificates of one authority for a server and a client.
func issue(t testing.TB) (forServer, forClient *etcd.TLS) {
	t.Helper()
	now := time.Now()
	ca, err := certs.NewAuthority("trial", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair := func(l certs.Leaf) *etcd.TLS {
		l.NotBefore, l.NotAfter = now.Add(-time.Hour), now.Add(time.Hour)
		p, err := ca.Sign(l)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		o := &etcd.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		for f, b := range map[string][]byte{o.CA: ca.Cert, o.Cert: p.Cert, o.Key: p.Key} {
			if err := os.WriteFile(f, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return o
	}
	return pair(certs.Leaf{Name: "etcd", Role: certs.RoleServer, Hosts: []string{"127.0.0.1"}}),
		pair(certs.Leaf{Name: "app", Role: certs.RoleLoader})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	forServer, forClient := issue(t)
	s := start(t, embedded.Options{TLS: forServer})
	o := etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c", TLS: forClient}
	store := open(t, o)
	if err := store.Swap(t.Context(), 0, newMap(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Join(t.Context(), server(0), time.Second); err != nil {
		t.Error(err)
	}
	_, stranger := issue(t)
	o.TLS = stranger
	err := refusal(t, o, "authority")
	oneLine(t, "certificate of another authority", err, member.ErrUnreachable, s.Endpoint(), "authority")
	o.TLS = nil
	err = refusal(t, o, "does it want TLS?")
	oneLine(t, "no TLS where it is wanted", err, member.ErrUnreachable, "does it want TLS?")
	plain := start(t, embedded.Options{})
	err = refusal(t, etcd.Options{Endpoints: []string{plain.Endpoint()}, Name: "c", TLS: forClient}, plain.Endpoint())
	oneLine(t, "TLS where it is not spoken", err, member.ErrUnreachable, plain.Endpoint())
}

func TestTLSFiles(t *testing.T) {
	t.Parallel()
	forServer, good := issue(t)
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tls  etcd.TLS
		text string
	}{
		{etcd.TLS{CA: "no-ca.pem", Cert: good.Cert, Key: good.Key}, "no-ca.pem"},
		{etcd.TLS{CA: good.CA, Cert: "no-cert.pem", Key: good.Key}, "no-cert.pem"},
		{etcd.TLS{CA: good.CA, Cert: good.Cert, Key: "no-key.pem"}, "no-key.pem"},
		{etcd.TLS{CA: junk, Cert: good.Cert, Key: good.Key}, junk},
		{etcd.TLS{CA: good.CA, Cert: junk, Key: good.Key}, junk},
		{etcd.TLS{CA: good.CA, Cert: good.Cert, Key: forServer.Key}, "match"},
		{etcd.TLS{CA: good.CA, Cert: good.Cert}, "key"},
		{etcd.TLS{Cert: good.Cert, Key: good.Key}, "authority"},
	} {
		_, err := etcd.Open(t.Context(), etcd.Options{Endpoints: []string{"127.0.0.1:1"}, Name: "c", TLS: &c.tls})
		oneLine(t, "client", err, member.ErrTLS, c.text)
		_, err = embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", TLS: &c.tls})
		oneLine(t, "server", err, member.ErrTLS, c.text)
	}
}

// TestLeaseAfterSleep: a machine that slept for longer than its lease has lost
// it, although no time has passed by the clocks that stand still meanwhile. It
// does not ask etcd first.
func TestLeaseAfterSleep(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	var slept atomic.Int64
	store := open(t, etcd.Options{Endpoints: []string{s.Endpoint()}, Name: "c", Clock: func() time.Duration {
		return clock.Now() + time.Duration(slept.Load())
	}})
	l, err := store.Join(t.Context(), server(0), 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	slept.Store(int64(time.Hour))
	select {
	case <-l.Lost():
	case <-time.After(testseed.Patience()):
		t.Fatal("the lease is held an hour after its last renewal")
	}
	oneLine(t, "lease", l.Err(), member.ErrLeaseLost, "not renewed within")
}

// TestSocket: etcd serves at a socket in the file system, and nowhere else.
func TestSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "drtmx") // t.TempDir's name may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	s := start(t, embedded.Options{Listen: path})
	if s.Endpoint() != path {
		t.Errorf("endpoint %s, want %s", s.Endpoint(), path)
	}
	store, err := etcd.OpenAt(t.Context(), &member.Location{Endpoints: []string{path}, Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Swap(t.Context(), 0, newMap(1)); err != nil {
		t.Fatal(err)
	}
	if state, err := store.State(t.Context()); err != nil || state.Map == nil {
		t.Errorf("%+v, %v", state, err)
	}
	_, err = embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Listen: path, TLS: &etcd.TLS{}})
	oneLine(t, "a socket with certificates", err, member.ErrInput, "a socket has no certificates")
	_, err = etcd.Open(t.Context(), etcd.Options{Endpoints: []string{filepath.Join(dir, "none")}, Name: "c", Timeout: patience})
	oneLine(t, "a socket that is not there", err, member.ErrUnreachable, "no such file")
}
