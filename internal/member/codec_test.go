package member_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/member"
	"drtmx/internal/placement"
)

const (
	goodServer = `{"format":5,"index":3,"instance":"00000000deadbeef","host":3,"zone":"rack 1","endpoints":["tcp:10.0.0.1:7000","shm:/run/drtmx/s3.sock"]}`
	goodMap    = `{"format":5,"epoch":7,"id":"00000000c0ffee00","size":2,"servers":[{"index":1,"instance":"0123456789abcdef","host":0,"endpoints":["verbs:[::1]:7100"]}],"primaries":[0,1,1],"sets":[{"server":1,"epoch":4,"since":2,"version":9,"members":3}],"wishes":[{"server":1,"host":0}],"drained":[0]}`
)

func TestValuesAreDecoded(t *testing.T) {
	s, err := member.DecodeServer([]byte(goodServer))
	if err != nil {
		t.Fatal(err)
	}
	want := &member.Server{Index: 3, Instance: 0xdeadbeef, Host: 3, Zone: "rack 1", Endpoints: []member.Endpoint{
		{Fabric: "tcp", Addr: "10.0.0.1:7000"}, {Fabric: "shm", Addr: "/run/drtmx/s3.sock"},
	}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, want %+v", s, want)
	}
	m, err := member.DecodeMap([]byte(goodMap))
	if err != nil || m.Epoch != 7 || m.Complete() || !slices.Equal(slices.Collect(m.Placement.Of(1)), []placement.Partition{1, 2}) {
		t.Errorf("%+v, %v", m, err)
	}
	b, err := member.EncodeMap(m)
	if err != nil || string(b) != goodMap {
		t.Errorf("%s, %v", b, err)
	}
}

func TestBadValues(t *testing.T) {
	for _, c := range []struct {
		old, now string // in goodMap
		want     error
		text     string
	}{
		{`"format":5`, `"format":1`, member.ErrFormat, "format 1, this binary reads format 5"},
		{`"format":5`, `"format":0`, member.ErrFormat, ""},
		{`"format":5,`, ``, member.ErrCorrupt, "no format"},
		{`"format":5`, `"format":5,"format":5`, member.ErrCorrupt, ""},
		{`"epoch":7`, `"epoch":0`, member.ErrCorrupt, "epoch is 0"},
		{`"epoch":7`, `"epoch":-1`, member.ErrCorrupt, ""},
		{`"epoch":7`, `"epoch":7.0`, member.ErrCorrupt, ""},
		{`"epoch":7`, `"epoch":7,"more":1`, member.ErrCorrupt, "more"},
		{`"epoch":7`, `"epoch":6,"epoch":7`, member.ErrCorrupt, ""},
		{`"epoch":7`, `"Epoch":7`, member.ErrCorrupt, ""},
		{`00000000c0ffee00`, `0000000000000000`, member.ErrCorrupt, "cluster is 0"},
		{`00000000c0ffee00`, `c0ffee`, member.ErrCorrupt, "cluster \"c0ffee\""},
		{`"instance"`, `"incarnation":"0000000000000000","instance"`, member.ErrCorrupt, ""},
		{`"size":2`, `"size":0`, member.ErrCorrupt, "size 0"},
		{`"size":2`, `"size":257`, member.ErrCorrupt, "size 257"},
		{`"size":2`, `"size":1`, member.ErrCorrupt, ""},
		{`[0,1,1]`, `[0,1,2]`, member.ErrCorrupt, "partition 2 is at server 2"},
		{`[0,1,1]`, `[]`, member.ErrCorrupt, "0 partitions"},
		{`[0,1,1]`, `[0, 1,1]`, member.ErrCorrupt, "canonical form"},
		{`"drained":[0]}`, `"drained":[0]}{}`, member.ErrCorrupt, ""},
		{`"host":0`, `"host":2`, member.ErrCorrupt, "server 1 is at host 2, want 0 to 1"},
		{`"host":0`, `"host":-1`, member.ErrCorrupt, "host -1"},
		{`"host":0,`, ``, member.ErrCorrupt, "canonical form"},
		{`"members":3`, `"members":0`, member.ErrCorrupt, "members 0"},
		{`"server":1`, `"server":2`, member.ErrCorrupt, "the copies of server 2"},
		{`"since":2`, `"since":5`, member.ErrCorrupt, "since 5"},
		{`"server":1,"host":0}]`, `"server":1,"host":1}]`, member.ErrCorrupt, "the wish of server 1"},
		{`"server":1,"host":0}]`, `"server":2,"host":0}]`, member.ErrCorrupt, "the wish of server 2"},
		{`"server":1,"host":0}]`, `"server":1,"host":2}]`, member.ErrCorrupt, "at host 2"},
		{`"server":1,"host":0}]`, `"server":1,"host":0},{"server":0,"host":1}]`, member.ErrCorrupt, "the wish of server 0 after that of 1"},
		{`"drained":[0]`, `"drained":[0,0]`, member.ErrCorrupt, "drained host 0 after 0"},
		{`"drained":[0]`, `"drained":[2]`, member.ErrCorrupt, "drained host 2"},
		{`"version":9`, `"version":0`, member.ErrCorrupt, "version 0"},
		{`"0123456789abcdef"`, `"0123456789ABCDEF"`, member.ErrCorrupt, "instance"},
		{`"0123456789abcdef"`, `"0000000000000000"`, member.ErrCorrupt, "instance is 0"},
		{`verbs:[::1]:7100`, `verbs:::1:7100`, member.ErrCorrupt, "host:port"},
		{`verbs:[::1]:7100`, `verbs:host:0`, member.ErrCorrupt, "host:port"},
		{`verbs:[::1]:7100`, `verbs:host:07`, member.ErrCorrupt, "host:port"},
		{`verbs:[::1]:7100`, `shm:here`, member.ErrCorrupt, "absolute path"},
		{`["verbs:[::1]:7100"]`, `["tcp:a:1","tcp:a:1"]`, member.ErrCorrupt, "named twice"},
		{`["verbs:[::1]:7100"]`, `[]`, member.ErrCorrupt, "0 endpoints"},
		{goodMap, ``, member.ErrCorrupt, ""},
		{goodMap, `[]`, member.ErrCorrupt, ""},
		{goodMap, goodServer, member.ErrCorrupt, ""},
		{goodMap, strings.Repeat(" ", member.MaxValueBytes+1), member.ErrCorrupt, "at most"},
	} {
		b := strings.Replace(goodMap, c.old, c.now, 1)
		m, err := member.DecodeMap([]byte(b))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") || errors.Is(err, member.ErrInput) {
			t.Errorf("%.60s: %+v, %v; want %v with %q", c.now, m, err, c.want, c.text)
		}
	}
	if _, err := member.DecodeServer([]byte(strings.Replace(goodServer, `"format":5`, `"format":9`, 1))); !errors.Is(err, member.ErrFormat) {
		t.Errorf("server of format 9: %v", err)
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "drtmx": true, "0.x_y-z": true, strings.Repeat("n", 63): true,
		"": false, "A": false, "a/b": false, "..": false, "-a": false, "a b": false, strings.Repeat("n", 64): false, "a\x00": false,
	} {
		if err := member.CheckName(name); (err == nil) != ok || err != nil && !errors.Is(err, member.ErrInput) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Any stored bytes either decode to a value that has exactly this encoding, or
// yield one of two errors.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(goodMap))
	f.Add([]byte(goodServer))
	f.Add([]byte(`{"format":5,"incarnation":"0123456789abcdef","log":81234}`))
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":5,"epoch":1,"id":"0000000000000001","size":1,"servers":[],"primaries":[0]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		typed := func(err error) {
			if !errors.Is(err, member.ErrFormat) && !errors.Is(err, member.ErrCorrupt) {
				t.Errorf("untyped error %v", err)
			}
		}
		if m, err := member.DecodeMap(b); err != nil {
			typed(err)
		} else if again, err := member.EncodeMap(m); err != nil || !bytes.Equal(again, b) || m.Check() != nil {
			t.Errorf("%s becomes %s, %v", b, again, err)
		}
		if d, err := member.DecodeDurable(b); err != nil {
			typed(err)
		} else if again, err := member.EncodeDurable(d); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s becomes %s, %v", b, again, err)
		}
		if s, err := member.DecodeServer(b); err != nil {
			typed(err)
		} else if again, err := member.EncodeServer(s); err != nil || !bytes.Equal(again, b) || s.Check() != nil {
			t.Errorf("%s becomes %s, %v", b, again, err)
		}
	})
}
