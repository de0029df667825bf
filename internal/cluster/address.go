package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/rdma/tcp"
)

// Schemes of cluster addresses.
const (
	SchemeTCP = "drtmx"
	SchemeShm = "drtmx+shm"
	// SchemeEtcd begins addresses of clusters whose members are kept in etcd.
	SchemeEtcd = "drtmx+etcd"
)

// ErrAddress reports the address of a cluster that is malformed. Its text
// names the address and what was expected.
var ErrAddress = errors.New("cluster: bad address")

// Address says where a cluster is:
//
//	drtmx://host:port,host:port     some data servers; each knows the addresses of all
//	drtmx+shm:///dir                the directory with the sockets of data servers of this host
//	drtmx+etcd://host:port,…/name   etcd servers, and the name under which they know the cluster
//
// The first form takes ?ca=FILE&cert=FILE&key=FILE for TLS, name=HOST for the
// name in the servers' certificates, and insecure=true for plain text beyond
// loopback. The third takes these, for the data servers, and
// etcd-ca=FILE&etcd-cert=FILE&etcd-key=FILE for TLS with etcd.
type Address struct {
	Hosts    []string         // of the first form
	Dir      string           // of the second; with Members, of the cluster whose store they are in
	Members  *member.Location // of the third
	TLS      *tcp.TLS
	Insecure bool
}

// IsAddress reports whether s has the form of an Address, that is, a scheme.
func IsAddress(s string) bool { return strings.Contains(s, "://") }

// ParseAddress parses an address. The error wraps ErrAddress.
func ParseAddress(s string) (*Address, error) {
	bad := func(format string, args ...any) (*Address, error) {
		return nil, fmt.Errorf("%w %q: %s", ErrAddress, s, fmt.Sprintf(format, args...))
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return bad("want %s://host:port,host:port or %s:///dir or %s://host:port/name", SchemeTCP, SchemeShm, SchemeEtcd)
	}
	switch scheme {
	case SchemeShm:
		if !strings.HasPrefix(rest, "/") {
			return bad("want an absolute directory, as in %s:///run/drtmx", SchemeShm)
		}
		if strings.ContainsRune(rest, 0) {
			return bad("a directory cannot hold a zero byte")
		}
		return &Address{Dir: filepath.Clean(rest)}, nil
	case SchemeTCP, SchemeEtcd:
	default:
		return bad("scheme %q, want %s, %s or %s", scheme, SchemeTCP, SchemeShm, SchemeEtcd)
	}
	rest, query, _ := strings.Cut(rest, "?")
	a, what := &Address{}, "data server"
	if scheme == SchemeEtcd {
		a.Members, what = &member.Location{}, "etcd server"
		rest, a.Members.Name, _ = strings.Cut(rest, "/")
		if err := member.CheckName(a.Members.Name); err != nil {
			return bad("want %s://host:port/name with a name of a-z, 0-9, dot, hyphen and underscore", SchemeEtcd)
		}
	}
	hosts, err := parseHosts(what, strings.TrimSuffix(rest, "/"))
	if err != nil {
		return bad("%v", err)
	}
	if a.Members != nil {
		a.Members.Endpoints = hosts
	} else {
		a.Hosts = hosts
	}
	if err := a.parseQuery(query); err != nil {
		return bad("%v", err)
	}
	return a, nil
}

// parseQuery parses the options that follow the hosts.
func (a *Address) parseQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("options %q: want name=value joined by &", query)
	}
	var t tcp.TLS
	fields := map[string]*string{"ca": &t.CA, "cert": &t.Cert, "key": &t.Key, "name": &t.ServerName}
	var e tcp.TLS
	known := "ca, cert, key, name or insecure"
	if a.Members != nil {
		fields["etcd-ca"], fields["etcd-cert"], fields["etcd-key"], fields["etcd-name"] = &e.CA, &e.Cert, &e.Key, &e.ServerName
		known = "ca, cert, key, name, insecure, etcd-ca, etcd-cert, etcd-key or etcd-name"
	}
	for name, v := range values {
		field := fields[name]
		switch {
		case len(v) > 1:
			return fmt.Errorf("option %s is given twice", name)
		case name == "insecure":
			if a.Insecure, err = strconv.ParseBool(v[0]); err != nil {
				return fmt.Errorf("option insecure=%s: want true or false", v[0])
			}
		case field == nil:
			return fmt.Errorf("unknown option %q, want %s", name, known)
		case v[0] == "":
			return fmt.Errorf("option %s has no value", name)
		default:
			*field = v[0]
		}
	}
	if a.TLS, err = wholeTLS(t, ""); err != nil || a.Members == nil {
		return err
	}
	etcdTLS, err := wholeTLS(e, "etcd-")
	a.Members.TLS = (*member.TLS)(etcdTLS)
	return err
}

// wholeTLS returns nil if t names no files, and an error if it names only some.
func wholeTLS(t tcp.TLS, prefix string) (*tcp.TLS, error) {
	switch {
	case t == tcp.TLS{}:
		return nil, nil
	case t.CA == "" || t.Cert == "" || t.Key == "":
		return nil, fmt.Errorf("TLS needs %[1]sca, %[1]scert and %[1]skey", prefix)
	}
	return &t, nil
}

// parseHosts parses a list of host:port. what names the list in errors.
func parseHosts(what, s string) ([]string, error) {
	var hosts []string
	for h := range strings.SplitSeq(s, ",") {
		if err := checkHostPort(what, h); err != nil {
			return nil, err
		}
		if slices.Contains(hosts, h) {
			return nil, fmt.Errorf("%s is named twice", h)
		}
		hosts = append(hosts, h)
	}
	if len(hosts) > MaxServers {
		return nil, fmt.Errorf("%d servers, want at most %d", len(hosts), MaxServers)
	}
	return hosts, nil
}

// checkHostPort returns an error for an address that cannot be dialled.
func checkHostPort(what, s string) error {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.ParseUint(port, 10, 16)
	switch {
	case s == "":
		return fmt.Errorf("%s: the address is empty, want host:port", what)
	case err != nil || host == "" || strings.ContainsAny(host, "+/ \t"):
		return fmt.Errorf("%s %q: want host:port", what, s)
	case perr != nil || n == 0:
		return fmt.Errorf("%s %q: want a port from 1 to 65535", what, s)
	}
	return nil
}

// String returns the address without its options.
func (a *Address) String() string {
	if a.Dir != "" {
		return SchemeShm + "://" + a.Dir
	}
	if a.Members != nil {
		return SchemeEtcd + "://" + strings.Join(a.Members.Endpoints, ",") + "/" + a.Members.Name
	}
	return SchemeTCP + "://" + strings.Join(a.Hosts, ",")
}

var socketFile = regexp.MustCompile(`^s(\d{1,4})(-\d{1,4})?\.sock$`)

// offers returns the data servers that the address names; these may know
// others. It returns ErrNoCluster for a directory without sockets. A host is
// tried by tcp first, then by verbs.
func (a *Address) offers() ([]multi.Address, error) {
	var all []multi.Address
	for _, h := range a.Hosts {
		all = append(all, multi.Address{TCP: h})
	}
	for _, h := range a.Hosts {
		all = append(all, multi.Address{Verbs: h})
	}
	if a.Dir == "" {
		return all, nil
	}
	if err := checkPrivate(a.Dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(a.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	for _, e := range entries {
		if socketFile.MatchString(e.Name()) {
			all = append(all, multi.Address{Shm: filepath.Join(a.Dir, e.Name())})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w in %s: it holds no sockets of data servers", ErrNoCluster, a.Dir)
	}
	return all, nil
}

// MemberAddrs returns the addresses of data servers that offer the fabrics named: shm
// at sockets in dir, other fabrics at hosts.
func MemberAddrs(servers int, fabrics []string, dir string, hosts []string) []string {
	all := make([]string, servers)
	for i := range all {
		var own []string
		if len(hosts) > 0 {
			own = hosts[i : i+1]
		}
		all[i] = MemberAddr(placement.Server(i), fabrics, dir, own)
	}
	return all
}

// MemberAddr returns the address of one data server. host has the server's own
// host:port if a network is named, and is empty otherwise.
func MemberAddr(server placement.Server, fabrics []string, dir string, host []string) string {
	var o multi.Address
	if slices.Contains(fabrics, multi.Shm) {
		o.Shm = filepath.Join(dir, socketName(server))
	}
	if slices.Contains(fabrics, multi.TCP) {
		o.TCP = host[0]
	}
	if slices.Contains(fabrics, multi.Verbs) {
		o.Verbs = host[0]
	}
	return o.String()
}

func socketName(server placement.Server) string { return fmt.Sprintf("s%d.sock", server) }

// ParseMembers checks a list of host:port; the error wraps ErrAddress.
func ParseMembers(hosts []string) ([]string, error) {
	for i, h := range hosts {
		if err := checkHostPort("data server", h); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAddress, err)
		}
		if slices.Contains(hosts[:i], h) {
			return nil, fmt.Errorf("%w: %s is named twice", ErrAddress, h)
		}
	}
	return hosts, nil
}
