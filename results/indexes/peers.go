package main

// peer is an index by others, which a C++ program measures.
type peer struct {
	name    string // as the program prints it
	program string // its source is peers/<program>.cc
	url     string
	commit  string
	licence string
	flags   []string // of g++; @ is the checkout, ! the directory peers
	compile []string // further sources of the checkout
	what    string   // what it is and what it does not do
}

// peers are compared with drtmx. A commit is what a fetch must give.
var peers = []*peer{
	{
		name: "ALEX", program: "alex",
		url: "https://github.com/microsoft/ALEX.git", commit: "4370da6aa8b509fdc9b0d2c49faa0624b0078589", licence: "MIT",
		flags: []string{"-I@/src/core"},
		what:  "A learned index whose nodes are arrays with gaps. Only one thread may use it. Loaded in bulk.",
	},
	{
		name: "FINEdex", program: "finedex",
		url: "https://github.com/iotlpf/FINEdex.git", commit: "f0889736d06778200eac66b8c717ef182bcb2444", licence: "GPL-3.0",
		flags: []string{"-I@/osm/include"},
		what:  "A learned index for several threads, with bins of inserted keys between trained ones. Loaded in bulk, with error bound 32. A GET that finds no trained key takes the lock of a bin. By its source, a scan gives a trained key before the inserted ones below it, and does not go on to the next model, so scans answer wrongly.",
	},
	{
		name: "XIndex", program: "xindex",
		url: "https://github.com/gre4index/GRE.git", commit: "e807edcef51df6732f07f94d4c797fb3897519ba", licence: "Apache-2.0",
		flags: []string{"-DNDEBUGGING", "-I@/src/competitor/xindex/src", "-I!/include"},
		what:  "A learned index for several threads, with buffers of inserted keys. Loaded in bulk, with its default bounds. MKL, which it includes, is replaced by a header: keys of one dimension do not use it. A thread in the background merges buffers and splits groups once a second. It runs beside the threads that are measured; the reads after the inserts begin when it is idle, or after a minute.",
	},
	{
		name: "Masstree", program: "masstree",
		url: "https://github.com/kohler/masstree-beta.git", commit: "11198427a1170654ca646dd20d96c8f349bca2bd", licence: "MIT, with a clause on names",
		flags:   []string{"-include", "!/include/config.h", "-I@", "-I!/include"},
		compile: []string{"kvthread.cc", "compiler.cc", "memdebug.cc", "string.cc", "str.cc", "straccum.cc"},
		what:    "A trie of B+trees for several threads. Keys are strings of 8 bytes here, so it is one B+tree with nodes of 15 keys. Our header replaces what its configure writes.",
	},
	{
		name: "B+tree-OLC", program: "btreeolc",
		url: "https://github.com/pohchaichon/index-microbench.git", commit: "e134d068c44a58f00e751546926142bd8453223f", licence: "none stated",
		flags: []string{"-I@/BTreeOLC"},
		what:  "A B+tree with optimistic lock coupling, nodes of 512 bytes, and leaves with links, from the benchmark GRE.",
	},
}

// side is what is measured of drtmx in one process.
type side struct{ name, what string }

var sides = []side{
	{"server", "The tree in the server's memory: a GET copies the row with its header and proof, a scan also copies headers and proofs of gaps. Inserts take the mutex of the partition. Models are trained after the inserts, not beside them."},
	{"partitions", "Two of the server's trees, with half of the keys each, by a hash, and a thread for each: a data server has an executor for each partition, so two of its threads never insert into one."},
	{"client", "The one-sided client over the in-process fabric with all models in its cache: it predicts, READs leaves, checks each copy, and returns proofs. It inserts nothing: rows are written by RPC and by the server's tree."},
	{"model", "The client's prediction and translation alone, which give the address of a leaf. It looks at no row."},
}
