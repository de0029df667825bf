package cluster

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"drtmx/internal/member"
	"drtmx/rdma/tcp"
)

func TestParseAddress(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Address
		text string
	}{
		{"drtmx://a:1", Address{Hosts: []string{"a:1"}}, "drtmx://a:1"},
		{"drtmx://a:1,[::1]:65535/", Address{Hosts: []string{"a:1", "[::1]:65535"}}, "drtmx://a:1,[::1]:65535"},
		{"drtmx+shm:///run/d", Address{Dir: "/run/d"}, "drtmx+shm:///run/d"},
		{"drtmx+shm:///run//d/", Address{Dir: "/run/d"}, "drtmx+shm:///run/d"},
		{"drtmx+etcd://a:1,b:2/shop", Address{Members: &member.Location{Endpoints: []string{"a:1", "b:2"}, Name: "shop"}}, "drtmx+etcd://a:1,b:2/shop"},
		{
			"drtmx+etcd://a:1/shop?ca=c&cert=x&key=k&etcd-ca=ec&etcd-cert=ex&etcd-key=ek",
			Address{
				TLS: &tcp.TLS{CA: "c", Cert: "x", Key: "k"},
				Members: &member.Location{
					Endpoints: []string{"a:1"}, Name: "shop", TLS: &member.TLS{CA: "ec", Cert: "ex", Key: "ek"},
				},
			},
			"drtmx+etcd://a:1/shop",
		},
		{"drtmx://a:1?insecure=true", Address{Hosts: []string{"a:1"}, Insecure: true}, "drtmx://a:1"},
		{
			"drtmx://a:1?ca=/c/ca.pem&cert=x.pem&key=k.pem&name=db",
			Address{Hosts: []string{"a:1"}, TLS: &tcp.TLS{CA: "/c/ca.pem", Cert: "x.pem", Key: "k.pem", ServerName: "db"}},
			"drtmx://a:1",
		},
	} {
		a, err := ParseAddress(c.in)
		if err != nil || !reflect.DeepEqual(*a, c.want) || a.String() != c.text {
			t.Errorf("%s: %+v, %v", c.in, a, err)
		}
	}
	for in, want := range map[string]string{
		"":                                     "want drtmx://host:port",
		"a:1":                                  "want drtmx://host:port",
		"http://a:1":                           `scheme "http", want drtmx, drtmx+shm or drtmx+etcd`,
		"drtmx://":                             "address is empty",
		"drtmx://a:1,":                         "address is empty",
		"drtmx://a":                            `data server "a": want host:port`,
		"drtmx://:1":                           "want host:port",
		"drtmx://a:0":                          "want a port from 1 to 65535",
		"drtmx://a:65536":                      "want a port from 1 to 65535",
		"drtmx://a:http":                       "want a port from 1 to 65535",
		"drtmx://a:1,a:1":                      "a:1 is named twice",
		"drtmx://a:1/db":                       "want a port",
		"drtmx://a:1?ca=x":                     "TLS needs ca, cert and key",
		"drtmx://a:1?ca=x&ca=y":                "given twice",
		"drtmx://a:1?cart=x":                   `unknown option "cart", want ca`,
		"drtmx://a:1?insecure=1x":              "want true or false",
		"drtmx://a:1?ca=":                      "has no value",
		"drtmx://a:1?%zz":                      "want name=value",
		"drtmx+etcd://a:1":                     "want drtmx+etcd://host:port/name",
		"drtmx+etcd://a:1/":                    "want drtmx+etcd://host:port/name",
		"drtmx+etcd://a:1/a/b":                 "want drtmx+etcd://host:port/name",
		"drtmx+etcd://a/db":                    `etcd server "a": want host:port`,
		"drtmx+etcd://a:1/db?etcd-ca=x":        "TLS needs etcd-ca, etcd-cert and etcd-key",
		"drtmx://a:1?etcd-ca=x":                `unknown option "etcd-ca"`,
		"drtmx+shm://run/d":                    "want an absolute directory",
		"drtmx+shm://":                         "want an absolute directory",
		"drtmx://" + strings.Repeat("a:1,", 3): "named twice",
	} {
		_, err := ParseAddress(in)
		if !errors.Is(err, ErrAddress) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// What is accepted means the same when it is written and read again.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"drtmx://a:1,b:2?ca=x&cert=y&key=z", "drtmx+shm:///run/d", "drtmx+etcd://a:1,b:2/shop?etcd-ca=x", "drtmx://[::1]:7"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := ParseAddress(s); err == nil {
			b, err := ParseAddress(a.String())
			if err != nil || b.Dir != a.Dir || !reflect.DeepEqual(a.Hosts, b.Hosts) || (a.Members == nil) != (b.Members == nil) {
				t.Errorf("%q: %+v, then %+v, %v", s, a, b, err)
			}
		} else if !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v", s, err)
		}
	})
}
