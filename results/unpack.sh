# shellcheck shell=bash
# Programs from Debian packages without installing them.

# unpack NAME...: Debian packages, with what they depend on and is not
# installed, into $work/root, where their libraries are found. go_on runs the
# commands.
unpack() {
	[ "$(id -u)" = 0 ] || { echo "only root can fetch packages: run as root, or apt-get install $*" >&2; return 1; }
	mkdir -p "$work/debs/partial" "$work/root"
	local options=(-qq -y --no-install-recommends --download-only --reinstall
		-o "Dir::Cache::archives=$work/debs" -o APT::Sandbox::User=root)
	go_on apt-get "${options[@]}" install "$@" >"$work/apt.log" 2>&1 ||
		{ go_on apt-get -qq update && go_on apt-get "${options[@]}" install "$@"; } >"$work/apt.log" 2>&1 ||
		{ tail -n 1 "$work/apt.log" >&2; return 1; }
	local deb
	for deb in "$work"/debs/*.deb; do
		dpkg -x "$deb" "$work/root" || return 1
	done
	local libraries
	libraries=$(dirname "$(find "$work/root/usr/lib" "$work/root/lib" -name '*.so*' 2>/dev/null | head -1)")
	[ "$libraries" = . ] || export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}
